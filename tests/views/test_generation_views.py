"""Views of a generation: the page as it is written, and the terminal."""

import io
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import conserva
from conserva.results.explanation import Sink
from conserva.results.generation import Generation
from conserva.views.generation_page import page as generation_page
from conserva.views.generation_terminal import show_generation
from conserva.views.wording import number
from made_up_generations import ONE, READ, WRITTEN, generation

START = ONE.start


# The page as it is written


class Pieces(HTMLParser):
    """Collects the tokens as text, what elements there are, and the names of all attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tokens: list[str] = []
        self.written: list[bool] = []
        self.tags: list[str] = []
        self.names: set[str] = set()
        self._depth = 0
        self._mark = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.names |= set(found)
        kinds = (found.get("class") or "").split()
        if "piece" in kinds:
            self.tokens.append("")
            self.written.append("written" in kinds)
        self._mark = "newline" in kinds
        if tag == "span" and (self._depth or "piece" in kinds):
            self._depth += 1

    def handle_endtag(self, tag: str) -> None:
        self._mark = False
        if tag == "span" and self._depth:
            self._depth -= 1

    def handle_data(self, data: str) -> None:
        if self._depth and not self._mark:
            self.tokens[-1] += data


def test_the_text_is_there_as_text_with_its_blanks() -> None:
    page = generation_page(ONE)
    found = Pieces(page)
    assert tuple(found.tokens) == ONE.features
    assert found.written == [i >= START for i in range(len(ONE.features))]
    assert found.tags.count("script") == 2
    assert not {"img", "link", "iframe", "b"} & set(found.tags)
    assert not {"src", "href", "onerror", "onclick"} & found.names
    assert page.count('<span class="newline" aria-hidden="true">↵</span>\n') == 2
    assert not re.search(r"https?://", page)


def test_without_a_script_a_table_names_the_sources() -> None:
    rows = re.findall(r'<tr><th scope="row" dir="auto">(.*?)</th>(.*?)</tr>', generation_page(ONE), re.DOTALL)
    assert [unescape(name) for name, _ in rows] == [token.replace("\n", "↵").strip() for token in WRITTEN]
    for (_, cells), step in zip(rows, ONE.steps, strict=True):
        best = max(range(1, len(step.scores)), key=lambda i, step=step: abs(step.scores[i]))  # type: ignore[misc]
        found = [unescape(cell) for cell in re.findall(r"<td.*?>(.*?)</td>", cells, re.DOTALL)]
        assert found[2].startswith(f"{ONE.features[best].replace(chr(10), '↵').strip()} {number(step.scores[best])}")
        share = Sink.of(0, ONE.features, step.scores).share
        assert found[3] == f"{number(step.scores[0])} ({share:.0%})"
        assert found[4] == number(step.ledger.gap)


def test_a_long_generation_stays_small() -> None:
    long = generation(("<s>", *(f" w{i}" for i in range(939))), tuple(f" v{i}" for i in range(60)))
    page = generation_page(long)
    assert len(long.features) == 1000
    assert len(page.encode()) < 1_000_000
    assert len(Pieces(page).tags) < 3000


def test_a_page_is_saved(tmp_path: Path) -> None:
    assert ONE.save(tmp_path / "one.html").read_text(encoding="utf-8") == generation_page(ONE)


# The terminal


def printed(width: int, steps: Any = None, one: Generation = ONE, **settings: Any) -> str:
    out = io.StringIO()
    show_generation(one, Console(file=out, width=width, **settings), steps)
    return out.getvalue()


def test_the_terminal_names_the_sources_of_every_token() -> None:
    plain = printed(120, color_system=None)
    assert "[bold]x[/bold]" in plain
    assert "".join(READ[:6]) in plain
    rows = [line for line in plain.splitlines() if re.match(r" +\d ", line)]
    assert [line.split()[0] for line in rows] == [str(i) for i in range(len(WRITTEN))]
    for line, step in zip(rows, ONE.steps, strict=True):
        best = max(step.scores[1:], key=abs)
        share = Sink.of(0, ONE.features, step.scores).share
        assert number(best) in line
        assert f"{number(step.scores[0])} ({share:.0%})" in line
        assert f"{step.probability:.1%}" in line
        assert line.endswith(number(step.ledger.gap))
    coloured = printed(120, [2], force_terminal=True, color_system="truecolor")
    assert "48;2;178;24;43" in coloured or "48;2;33;102;172" in coloured


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_number_is_cut(width: int) -> None:
    text = printed(width, one=generation(READ[:5], tuple(f" word{i}" for i in range(4))), color_system=None)
    for line in text.splitlines():
        assert len(line) <= width
        assert "…" not in line
    assert len(re.findall(r"\bword\d  +\d", text)) == 4


def test_steps_that_are_asked_for() -> None:
    text = printed(120, [5, 1], color_system=None)
    assert re.findall(r"^ +(\d) ", text, re.MULTILINE) == ["5", "1"]
    for wrong in (-1, 7):
        with pytest.raises(conserva.Error, match=f"step={wrong} is not an index of the 7 generated tokens"):
            printed(120, [wrong])


def test_without_a_ledger_and_with_two_inputs() -> None:
    steps = tuple(replace(step, ledger=None) for step in ONE.steps)
    one = replace(ONE, steps=steps, sections=(("source", START - 1), ("answer so far", len(WRITTEN) + 1)))
    text = printed(120, one=one, color_system=None)
    assert "no ledger: this method does not decompose the output" in text
    assert "source: <s>The capital" in text
    assert "answer so far:  is Paris" in text


def test_on_the_page_the_generated_text_comes_before_the_choice_of_colours() -> None:
    html = generation_page(generation())
    assert html.index('id="text"') < html.index('id="choices"') < html.index('id="panel"')
    assert "opacity" not in re.findall(r"\.newline\{(.*?)\}", html)[0]  # text of less than full ink is hard to read
