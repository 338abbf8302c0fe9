"""What tests share: the page of a generation in a browser, and what is to be seen there after each act."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from browser import Pages
from conserva.engine.ledger import ENTRIES
from conserva.results.explanation import Explanation, Sink
from conserva.results.generation import Generation
from conserva.views import colours
from conserva.views.generation_page import page as generation_page
from conserva.views.wording import number

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

SHOT = """() => {
  const pieces = Array.from(document.querySelectorAll(".piece"));
  const textOf = id => document.getElementById(id).textContent;
  return {
    scores: Object.fromEntries(pieces.flatMap((p, i) => p.dataset.score ? [[i, Number(p.dataset.score)]] : [])),
    colours: Object.fromEntries(pieces.flatMap((p, i) => p.style.getPropertyValue("--l")
      ? [[i, ["--l", "--li", "--d", "--di"].map(n => p.style.getPropertyValue(n))]] : [])),
    selected: pieces.flatMap((p, i) => p.getAttribute("aria-pressed") === "true" ? [i] : []),
    stops: pieces.flatMap((p, i) => p.tabIndex === 0 ? [i] : []), focus: pieces.indexOf(document.activeElement),
    ledger: Object.fromEntries(Array.from(document.querySelectorAll("#bar [data-entry]"),
      s => [s.dataset.entry, Number(s.dataset.value)])),
    steps: Array.from(document.querySelectorAll("#bar .track span"), s => [s.style.left, s.style.width, s.className]),
    bar: getComputedStyle(document.getElementById("bar")).display, hash: location.hash,
    hidden: pieces.flatMap((p, i) => p.getClientRects().length ? [] : [i]),
    chips: Array.from(document.querySelectorAll(".chip"),
      c => [c.textContent, c.getAttribute("aria-expanded"), c.title]),
    zero: document.querySelector("#bar .track")?.style.getPropertyValue("--zero"),
    titles: Object.fromEntries(pieces.flatMap((p, i) => p.title ? [[i, p.title]] : [])),
    ...Object.fromEntries(["summary", "sources", "others", "share", "low", "high", "keys"].map(id => [id, textOf(id)])),
  };
}"""


def middle(piece: Locator) -> tuple[float, float]:
    """Return the middle of a token's first line."""
    box = piece.evaluate("one => one.getClientRects()[0].toJSON()")
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(page: Page, path: list[int]) -> None:
    pieces = page.locator(".piece")
    page.mouse.move(*middle(pieces.nth(path[0])))
    page.mouse.down()
    for i in path[1:]:
        page.mouse.move(*middle(pieces.nth(i)))
    page.mouse.up()
    page.evaluate("new Promise(done => setTimeout(done))")  # the drag ends after its last event


def tab_to_text(page: Page) -> None:
    """Press the Tab key until a token has the focus."""
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.piece')"):
            return
    raise AssertionError("The text is not reached by the Tab key.")


ACTS: dict[str, Callable[[Page, Any], None]] = {
    "hover": lambda page, i: page.locator(".piece").nth(i).hover(),
    "leave": lambda page, _: page.mouse.move(1, 1),
    "click": lambda page, i: page.locator(".piece").nth(i).click(),
    "shift": lambda page, i: page.locator(".piece").nth(i).click(modifiers=["Shift"]),
    "drag": drag,
    "chip": lambda page, i: page.locator(".chip").nth(i).click(),
    "source": lambda page, i: page.locator(".source").nth(i).click(),
    "box": lambda page, _: page.locator("#first").click(),
    "tab": lambda page, _: tab_to_text(page),
    "key": lambda page, name: page.keyboard.press(name),
}


def driven(pages: Pages, one: Generation, acts: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Do things with the page in a browser; return what is to be seen after each."""
    page = pages.open(generation_page(one))
    seen = []
    for name, value in acts:
        ACTS[name](page, value)
        seen.append(page.evaluate(SHOT))
    return seen


def lit(seen: dict[str, Any]) -> dict[int, float]:
    return {int(i): score for i, score in seen["scores"].items()}


def agrees(seen: dict[str, Any], expected: Explanation) -> None:
    """The page has the scores, the output and the ledger of an explanation."""
    assert lit(seen) == pytest.approx(dict(enumerate(expected.scores)), rel=1e-4, abs=1e-5)
    assert seen["ledger"] == pytest.approx(
        {**{name: getattr(expected.ledger, name) for name in ENTRIES}, "output": expected.output}, rel=1e-4
    )
    assert f"logit {number(expected.output)}" in seen["summary"]
    share = Sink.of(0, expected.features, expected.scores).share
    assert f"{share:.0%} of the absolute relevance" in seen["share"]


def coloured(scores: dict[int, float]) -> dict[str, list[str]]:
    """The colours that the other views give scores on both backgrounds, where they differ from the background."""
    scale = max(map(abs, scores.values()))
    found = {}
    for i, score in scores.items():
        if abs(score) < scale / 510:
            continue
        score = math.copysign(round(255 * abs(score) / scale) / 255 * scale, score)
        shades = [colours.shade(score, scale, ground) for ground in (colours.LIGHT, colours.DARK)]
        found[str(i)] = [colours.hexadecimal(one) for shade in shades for one in (shade, colours.ink(shade))]
    return found
