"""Views: every word, its number and the ledger are there, and nothing a text says is taken for more than text."""

import html.parser
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

import conserva
from browser import Pages, check_light_and_dark, in_a_browser
from conserva.results.explanation import Explanation
from conserva.views import colours, terminal
from conserva.views.explanation_page import fragment, page
from made_up_explanations import explanation

NASTY = "<script>alert(1)</script> \"quotes\" & 'more' 🎬 שלום عالم $x_1$ <img src=x onerror=alert(2)>"


# Colours


def test_the_scale_is_symmetric_and_white_at_zero() -> None:
    assert colours.shade(0, 1) == colours.LIGHT
    assert colours.shade(1, 1) == colours.FOR
    assert colours.shade(-1, 1) == colours.AGAINST
    assert colours.shade(0, 1, colours.DARK) == colours.DARK
    assert colours.shade(5, 1) == colours.FOR


@pytest.mark.parametrize("ground", [colours.LIGHT, colours.DARK])
def test_text_stays_readable_on_every_shade(ground) -> None:
    for i in range(-50, 51):
        background = colours.shade(i / 50, 1, ground)
        assert colours.contrast(colours.ink(background), background) >= 4.5


def test_red_and_blue_differ_for_the_colour_blind() -> None:
    """Red and blue lie apart on the axis that people without red or green cones still see: blue against yellow."""
    yellowness = [(red + green) / 2 - blue for red, green, blue in (colours.FOR, colours.AGAINST)]
    assert yellowness[0] - yellowness[1] > 100


# The terminal


def printed(one: Explanation, **settings: object) -> str:
    out = io.StringIO()
    terminal.show([one], Console(file=out, width=100, **settings))
    return out.getvalue()


def test_terminal_in_true_colour_and_plain() -> None:
    one = explanation(["[CLS]", "good", "bad"])
    coloured = printed(one, force_terminal=True, color_system="truecolor")
    assert "48;2;178;24;43" in coloured or "48;2;" in coloured
    plain = printed(one, color_system=None)
    assert "\x1b" not in plain
    assert "good(+0.400)" in plain
    few = printed(one, force_terminal=True, color_system="standard")
    assert "48;" not in few  # sixteen colours have no shades: the number instead
    assert "good(+0.400)" in few
    for text in (coloured, plain, few):
        assert "positive" in text
        assert "gap" in text


def test_terminal_takes_markup_as_text() -> None:
    assert "[bold]x[/bold]" in printed(explanation(["[bold]x[/bold]"]), color_system=None)


def test_comparison_says_why_a_method_does_not_apply() -> None:
    out = io.StringIO()
    rows = {"exact": explanation(["good"]), "other": "needs attention maps"}
    terminal.compare(rows, Console(file=out, width=100))
    assert "needs attention maps" in out.getvalue()


def test_an_explanation_without_a_ledger_or_scores() -> None:
    one = explanation(["a"], ledger=None, scores=(0.0,), probability=None)
    assert "does not decompose" in printed(one, color_system=None)
    assert "does not decompose" in page([one])


# The page


class Reader(html.parser.HTMLParser):
    """Collects tokens, their scores, ledger parts, and everything that could load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[tuple[str, float]] = []
        self.entries: dict[str, float] = {}
        self.tags: set[str] = set()
        self._score: float | None = None
        self._text = ""

    def handle_starttag(self, tag: str, attrs) -> None:
        found = dict(attrs)
        self.tags.add(tag)
        assert not {"src", "href", "onerror", "onclick", "onload"} & set(found)
        if "data-score" in found:
            self._score, self._text = float(found["data-score"]), ""
        if "data-entry" in found:
            self.entries[found["data-entry"]] = float(found["data-value"])

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "span" and self._score is not None:
            self.tokens.append((self._text, self._score))
            self._score = None


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


def test_page_holds_every_word_its_score_and_the_ledger() -> None:
    one = explanation([NASTY, *NASTY.split()])
    for text in (page([one]), fragment([one]), one._repr_html_()):
        found = read(text)
        assert [token for token, _ in found.tokens] == list(one.features)
        assert [score for _, score in found.tokens] == pytest.approx(list(one.scores), abs=5e-4)
        assert set(found.entries) == {"inputs", "positions", "biases", "gap"}
        assert sum(found.entries.values()) == pytest.approx(one.output, abs=1e-4)
        assert not found.tags & {"script", "img", "link", "iframe", "object"}
    assert not re.search(r"https?://", page([one]))


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf", ".html", ".json"])
def test_every_ending_is_written(tmp_path: Path, ending: str) -> None:
    one = explanation(["[CLS]", "pay", "$5", "or", "$6", *["word"] * 60])
    path = one.save(tmp_path / f"one{ending}")
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".html": b"<!doctype", ".json": b"{"}[ending]
    assert path.read_bytes().startswith(start)


# A real browser


@in_a_browser
def test_in_a_browser_everything_shows_as_text_and_nothing_runs(pages: Pages) -> None:
    task = conserva.load()
    words = " ".join(f"w{i}" for i in range(60))
    one = conserva.explain(task, f"{NASTY} {words} " + "fine " * 600, method="exact", truncate=True)
    assert len(one.features) == 512
    nasty = explanation([NASTY])
    opened = pages.open(page([one, nasty]), height=1400)
    found = read(opened.content())
    inside, special = [one.text[slice(*span)] for span in one.offsets if span], [one.features[0], one.features[-1]]
    assert [token for token, _ in found.tokens[: len(inside)]] == inside
    assert [token for token, _ in found.tokens if token in special][:2] == special
    assert found.tokens[-1] == (NASTY, nasty.scores[0])
    assert [score for _, score in found.tokens[: len(inside)]] == pytest.approx(one.scores[1:-1], abs=6e-4)
    assert set(found.entries) == {"inputs", "positions", "biases", "gap"}
    assert not found.tags & {"script", "img", "link", "iframe"}
    check_light_and_dark(opened)
