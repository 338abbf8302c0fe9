"""A page of many explanations: a list that is written lazily, and searched, sorted and filtered in the browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape

from playwright.sync_api import expect

from browser import Pages, in_a_browser
from conserva import Explanations
from conserva.engine.ledger import Ledger
from conserva.results.explanation import Explanation
from conserva.views.explanation_page import MOST_IN_FULL, MOST_IN_NOTEBOOKS, fragment, page, page_parts
from made_up_explanations import explanation
from made_up_images import explained

HOSTILE = "</noscript><script>document.title='owned'</script><img src=x onerror=alert(1)> &lt;b&gt; \u202e"
TEXTS = ["A good film", "a bad film", "so GOOD", "nothing", "a bad, bad end", HOSTILE, "line\nline \udc80"]


def made(i: int, text: str) -> Explanation:
    gap = 5.0 if i % 3 == 0 else 0.0
    return explanation(
        text.split(),
        text=text,
        target="positive" if i % 2 == 0 else "<negative>",
        output=i - 2.5,
        probability=round((i * 5 % 7) / 7, 3),
        ledger=Ledger.of(i - 2.5, i - 2.5 - gap, 0.0, 0.0),
        provenance={"seed": "same"},
    )


MANY = [made(i, text) for i, text in enumerate(TEXTS)]


# The page as it is written


def test_rows_name_their_models_if_there_are_several() -> None:
    steps = [replace(one, model=f"<tiny>, step {i}") for i, one in enumerate(MANY)]
    for make in (page, fragment):
        assert "<bdi class=" not in make(MANY)
        assert re.findall(r'<bdi class="note">&lt;tiny&gt;, step (\d)</bdi>', make(steps)) == list("0123456")
    assert "<h1>Explanations</h1>" in page(steps)
    late = [*MANY, replace(MANY[0], model="other")]  # lists are read as they are written
    assert re.findall('<bdi class="note">(.*?)</bdi>', page(late)) == ["other"]


def test_a_few_are_shown_in_full_and_many_as_a_list() -> None:
    few, many = page(MANY[:MOST_IN_FULL]), page(MANY[: MOST_IN_FULL + 1])
    assert few.count("<section>") == MOST_IN_FULL
    assert "<script" not in few
    assert "script-src" not in few
    assert many.count('<details class="text"') == many.count("<noscript>") == MOST_IN_FULL + 1
    assert many.count("<script>") == 1
    assert not re.search(r"https?://", many)


def test_every_row_has_its_text_and_its_whole_explanation() -> None:
    rows = re.findall(r'<details class="text".*?</details>(?=<details class="text"|</div>)', page(MANY), re.DOTALL)
    assert len(rows) == len(MANY)
    for row, one in zip(rows, MANY, strict=True):
        excerpt = re.search(r'class="excerpt" dir="auto">(.*?)</span>', row, re.DOTALL)
        assert excerpt
        expected = one.text.replace("\u202e", "\\u202e").replace("\udc80", "\\udc80")
        assert unescape(excerpt[1]) == expected
        assert len(re.findall(r'<span class="token', row)) == len(one.features)
        assert f"{one.probability:.1%}" in row
        assert row.count("</noscript>") == 1  # no text can end it


def test_a_large_gap_is_marked_and_a_small_one_is_not() -> None:
    found = page(MANY)
    assert found.count('<span class="warn">gap +5.000</span>') == 3
    assert found.count('data-large="yes"') == 3
    assert page([replace(one, ledger=None, probability=None) for one in MANY]).count("data-gap") == len(MANY)


def test_a_provenance_that_all_share_is_shown_once() -> None:
    assert page(MANY).count("<dd>same</dd>") == 1
    other = [*MANY, replace(MANY[0], provenance={"seed": "other"})]
    assert (page(other).count("<dd>same</dd>"), page(other).count("<dd>other</dd>")) == (1, 1)


def test_explanations_are_read_as_they_are_written() -> None:
    read = 0

    def stream() -> Iterator[Explanation]:
        nonlocal read
        for _ in range(200):
            read += 1
            yield MANY[read % len(MANY)]

    parts = page_parts(stream())
    written: list[str] = []
    while "".join(written).count('<details class="text"') < 20:
        written.append(next(parts))
    assert read <= 20 + MOST_IN_FULL + 1
    assert "".join([*written, *parts]).count('<details class="text"') == 200


def test_no_explanations_make_a_page() -> None:
    assert "<!doctype html>" in page([])
    assert "<section>" not in page([])
    assert fragment([])


def test_a_notebook_shows_the_first_of_a_long_list() -> None:
    found = Explanations(tuple(MANY[i % len(MANY)] for i in range(MOST_IN_NOTEBOOKS + 1200)))._repr_html_()
    assert found.count('<details class="text"') == MOST_IN_NOTEBOOKS
    assert "1,200 more are not shown here" in found
    assert "<noscript" not in found  # notebooks run scripts, but not those of results
    assert "<script" not in found
    assert "not shown here" not in fragment(MANY)


# In a browser


@in_a_browser
def test_in_a_browser_the_list_is_searched_sorted_and_filtered(pages: Pages) -> None:
    steps: list[tuple[str, str, list[int]]] = [
        ("search", "good", [0, 2]),
        ("search", " BAD ", [1, 4]),
        ("search", "<img src=x", [5]),
        ("search", "no such text", []),
        ("search", "", [0, 1, 2, 3, 4, 5, 6]),
        ("target", "<negative>", [1, 3, 5]),
        ("search", "bad", [1]),
        ("search", "", [1, 3, 5]),
        ("target", "", [0, 1, 2, 3, 4, 5, 6]),
        ("large", "", [0, 3, 6]),
        ("sort", "output -1", [6, 3, 0]),
        ("large", "", [6, 5, 4, 3, 2, 1, 0]),
        ("sort", "probability -1", [4, 1, 5, 2, 6, 3, 0]),
        ("sort", "probability 1", [0, 3, 6, 2, 5, 1, 4]),
        ("sort", "gap -1", [0, 3, 6, 1, 2, 4, 5]),
        ("sort", "length 1", [3, 2, 0, 1, 6, 4, 5]),
        ("sort", "", [0, 1, 2, 3, 4, 5, 6]),
    ]
    opened = pages.open(page(MANY))
    expect(opened).to_have_title("Explanations of sentiment")
    expect(opened.locator("#target option")).to_have_text(["all", "positive (4)", "<negative> (3)"])
    written = [text.replace("\u202e", "\\u202e").replace("\udc80", "\\udc80") for text in TEXTS]
    for name, value, expected in steps:
        control = opened.locator(f"#{name}")
        if name == "search":
            control.fill(value)
        elif name == "large":
            control.click()
        else:
            control.select_option(value)
        expect(opened.locator(".rows > :not([hidden]) .excerpt")).to_have_text([written[i] for i in expected])
        expect(opened.locator("#count")).to_have_text(
            "7 texts" if len(expected) == 7 else f"{len(expected)} of 7 texts"
        )
    tokens = opened.locator(".rows .token")
    assert tokens.count() == 0  # built when a row is opened
    opened.locator(".rows > *").nth(5).locator("summary").click()
    expect(tokens).to_have_text([name.replace("\u202e", "\\u202e") for name in MANY[5].features])


@in_a_browser
def test_in_a_browser_the_policy_allows_the_script_of_the_list(pages: Pages) -> None:
    html = page(MANY)
    expect(pages.open(html).get_by_role("status")).to_have_text("7 texts")
    other = pages.open(html.replace('"use strict"', '"use strict" '))  # another script
    expect(other.locator("#count")).to_have_text("")
    (problem,) = pages.problems
    assert "violates the following Content Security Policy" in problem
    pages.problems.clear()


def test_a_list_says_what_it_is_of() -> None:
    assert 'class="rows" data-noun="texts"' in page(MANY)
    assert 'class="rows" data-noun="inputs"' in page([explained()] * 7)
    assert page(MANY).index('id="verdict"') < page(MANY).index('id="tools"')


def test_a_hidden_control_is_not_shown_by_another_rule() -> None:
    assert "[hidden]{display:none!important}" in page(MANY)
