"""The page of a trace: the score of every cell can be read without a script, with few tokens and with many."""

import dataclasses
import re
from html import unescape

import pytest

from browser import Pages, in_a_browser
from conserva.results.trace import Trace
from conserva.views.trace_page import fragment, page
from conserva.views.trace_wording import LOOK_FOR
from conserva.views.verdict import verdict
from conserva.views.wording import number
from flat_text import flat
from made_up_traces import NASTY, SHOWN


def trace_of(features: int, layers: int = 3) -> Trace:
    scores = tuple(tuple((-1) ** i * (i + row) / features for i in range(features)) for row in range(layers))
    return dataclasses.replace(
        SHOWN,
        features=tuple(f"token{i}" for i in range(features)),
        special=(False,) * features,
        words=tuple(range(features)),
        offsets=(),
        unknown=(),
        layers=("inputs", *(f"layer {i}" for i in range(layers - 1))),
        scores=scores,
        sums=tuple(map(sum, scores)),
        ledger=None,
    )


@pytest.mark.parametrize("features", [1, 5, 11, 300])
@pytest.mark.parametrize("view", [page, fragment])
def test_every_cell_has_its_score_as_text(view, features: int) -> None:
    one = trace_of(features)
    html = view(one)
    labels = [unescape(text) for text in re.findall(r'data-label="(.*?)"', html)]
    assert labels == [
        f"{layer} · {name} {number(score)}"
        for layer, scores in list(zip(one.layers, one.scores, strict=True))[::-1]
        for name, score in zip(one.features, scores, strict=True)
    ]
    assert html.count('tabindex="0"') == len(labels) + 1  # the cells and the box that scrolls
    assert LOOK_FOR in flat(html)
    assert f"<h2>{verdict(one.explanation())}</h2>" in unescape(html)
    assert re.search('class="conserva trace (few|some|many)"', html).group(1) == (  # type: ignore[union-attr]
        "few" if features <= 10 else "some" if features <= 60 else "many"
    )


def test_nothing_in_a_token_is_taken_for_markup() -> None:
    html = page(SHOWN)
    assert "<script>" not in html
    labels = [unescape(text) for text in re.findall(r'data-label="(.*?)"', html)]
    assert f"layer 0 · {NASTY} +0.500" in labels
    assert "inputs · [cls]: no such position" in labels
    assert any("電影↵" in label for label in labels)  # a line break is shown, and does not end the label


def test_columns_are_labelled_with_the_text_as_it_was_written() -> None:
    one = dataclasses.replace(trace_of(3), features=("un", "##fair", "[SEP]"), text="UNfair")
    one = dataclasses.replace(one, offsets=((0, 2), (2, 6), None), unknown=(False,) * 3)
    assert re.findall(r'<span dir="auto">(.*?)</span>', page(one)) == ["UN", "fair", "[SEP]"]


@in_a_browser
@pytest.mark.parametrize(("features", "width"), [(5, 390), (300, 390), (300, 1280)])
def test_in_a_browser_the_map_scrolls_in_its_box_and_tells_the_focused_score(
    pages: Pages, features: int, width: int
) -> None:
    opened = pages.open(page(trace_of(features)), width=width, height=800)
    for _ in range(5):  # the map, and four cells
        opened.keyboard.press("Tab")
    content, position, fits, size, legible, sticky = opened.evaluate("""() => {
      const shown = getComputedStyle(document.activeElement, "::after"), label = document.querySelector(".label span");
      return [
        shown.content, shown.position, document.documentElement.scrollWidth <= innerWidth,
        parseFloat(getComputedStyle(label).fontSize), label.getBoundingClientRect().height >= 12,
        getComputedStyle(document.querySelector("th[scope=row]")).position];
    }""")
    assert content.strip('"') == f"layer 1 · token3 {number(-5 / features)}"
    assert (position, fits, legible, sticky) == ("absolute", True, True, "sticky")
    assert size >= 12
