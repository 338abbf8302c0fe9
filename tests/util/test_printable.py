"""The gate for text that leaves: what acts is shown, what is text stays, results are walked through to their end."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

from conserva._util.text import displayed, mapped, printable, to_json
from conserva.errors import Error

EVERY = [chr(code) for code in range(sys.maxunicode + 1)]
TEXTS = (
    "a joy.", "καλό", "很好看的电影", "فيلم جميل", "הסרט \u200fב\u200e", "👩\u200d👩\u200d👧\u200d👧 🇪🇺 ❤\ufe0f",
    "می\u200cرود", "e\u0301\u0323", "soft\u00adhyphen", "\u00a0\u3000", "🏴\U000e0067\U000e0062\U000e007f", "",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_every_script_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("a\nb\tc\r", r"a↵b⇥c\r"),
        ("\x00\x7f", r"\x00\x7f"),
        ("\x9b31m\x85", r"\x9b31m\x85"),
        ("\u2028\u202e\u2066\u206a", r"\u2028\u202e\u2066\u206a"),
        ("\ud800\udc80x\ufffe", r"\ud800\udc80x\ufffe"),
        ("\ufeffa\ufff9b\ufffb", r"\ufeffa\ufff9b\ufffb"),
    ],
)
def test_what_acts_is_shown(given: str, shown: str) -> None:
    assert printable(given) == shown
    assert printable(shown) == shown


def test_of_all_characters_none_is_left_that_acts() -> None:
    changed = [one for one in EVERY if printable(one) != one]
    kinds = {unicodedata.category(one) for one in changed}
    assert kinds == {"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"}
    for kind in ("Cc", "Cs", "Zl", "Zp"):
        assert {one for one in EVERY if unicodedata.category(one) == kind} <= set(changed)
    turned = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    assert {one for one in EVERY if unicodedata.bidirectional(one) in turned} <= set(changed)
    text = printable("".join(EVERY))
    assert len(text.splitlines()) == 1
    ElementTree.fromstring(f"<a>{text.replace('&', '').replace('<', '')}</a>".encode())


def test_some_can_be_kept_and_long_text_is_cut_in_the_middle() -> None:
    assert printable("a\n\tb\x1b", keep="\n") == "a\n⇥b\\x1b"
    cut = printable("a" * 90 + "\x1b" * 90, limit=30)
    assert cut == "a" * 20 + " […] " + r"\x1b" * 10
    assert printable("\n" * 30, limit=30) == "↵" * 30


def test_errors_are_one_line() -> None:
    assert str(Error("model='\x1b[2J\n' is unknown")) == r"model='\x1b[2J↵' is unknown"


class Pair(NamedTuple):
    name: str
    size: int


@dataclass(frozen=True)
class Leaf:
    name: str
    sizes: tuple[float, ...] = (1.0, 2.0)


@dataclass(frozen=True)
class Whole:
    leaves: Sequence[Leaf]
    settings: dict[Any, Any] = field(default_factory=dict)
    count: int = field(init=False, default=3)


class Rows(Sequence[Leaf]):
    """A sequence that makes its rows when asked."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: Any) -> Any:
        return Leaf(["a", "\x1b"][i])


def test_results_are_walked_through() -> None:
    given = Whole(
        [Leaf("\x1b"), Leaf("b")],
        {"\n": None, "x": {"y": ["\x00", 1, b"\x00"]}, 3: (Pair("\x07", 1), "\r"), None: "\t"},
    )
    found = displayed(given)
    assert found == Whole(
        [Leaf(r"\x1b"), Leaf("b")],
        {"↵": None, "x": {"y": [r"\x00", 1, b"\x00"]}, 3: (Pair(r"\x07", 1), r"\r"), None: "⇥"},
    )
    assert type(found.settings[3][0]) is Pair
    assert given.leaves[0].name == "\x1b"
    assert found.leaves[1] is given.leaves[1]
    assert displayed(Whole(Rows())).leaves == (Leaf("a"), Leaf(r"\x1b"))


@pytest.mark.parametrize(
    "value", [None, 1.5, True, "a", b"\x1b", [1, "a"], {"a": {"b": None}}, Whole([Leaf("a")]), Leaf]
)
def test_what_needs_no_change_is_the_same_object(value: object) -> None:
    assert displayed(value) is value


def test_line_feeds_can_be_kept_and_other_changes_made() -> None:
    assert displayed(["a\nb\x1b"], keep="\n") == ["a\nb\\x1b"]
    assert mapped({"a": ("b", 1)}, str.upper) == {"A": ("B", 1)}


@pytest.mark.parametrize("ascii_only", [False, True])
def test_json_is_printable_and_loses_nothing(ascii_only: bool) -> None:
    value = {"\x1b]0;x\x07": ["".join(chr(code) for code in range(0x2070)), "\ufeff\ufff9\uffff\ud800é👩\u200d👩"]}
    text = to_json(value, ascii_only=ascii_only)
    assert json.loads(text) == value
    assert printable(text, keep="\n") == text
    assert ("é" in text) is not ascii_only
