"""What tests share: the page of a generation in a browser, and what is to be seen there after each act."""

import json
import math
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from conserva.engine.ledger import ENTRIES
from conserva.results.explanation import Explanation, Sink
from conserva.results.generation import Generation
from conserva.views import colours
from conserva.views.generation_page import page as generation_page
from conserva.views.wording import number
from made_up_explanations import WITH_FOCUS, in_browser

DRIVER = (
    f"<script>{WITH_FOCUS}"
    + """
const pieces = Array.from(document.querySelectorAll(".piece")), text = document.getElementById("text");
const textOf = id => document.getElementById(id).textContent;
const send = (to, kind, name, more) => to.dispatchEvent(new kind(name, {bubbles: true, cancelable: true, ...more}));
const key = (name, shiftKey) => send(document.activeElement, KeyboardEvent, "keydown", {key: name, shiftKey});
const acts = {
  hover: i => send(pieces[i], PointerEvent, "pointerover", {pointerType: "mouse"}),
  touch: i => send(pieces[i], PointerEvent, "pointerover", {pointerType: "touch"}),
  leave: () => send(text, PointerEvent, "pointerleave"),
  click: i => send(pieces[i], MouseEvent, "click"),
  drag: ([from, ...path]) => {
    const at = i => { const {x, y, width, height} = pieces[i].getClientRects()[0];
      return {clientX: x + width / 2, clientY: y + height / 2, button: 0}; };
    pieces[from].scrollIntoView({block: "center"});
    send(pieces[from], PointerEvent, "pointerdown", at(from));
    for (const i of path) send(pieces[from], PointerEvent, "pointermove", at(i));
    send(pieces[from], PointerEvent, "pointerup", at(path.at(-1)));
    if (path.at(-1) === from) send(pieces[from], MouseEvent, "click"); else send(text, MouseEvent, "click");
  },
  chip: i => document.querySelectorAll(".chip")[i].click(),
  source: i => document.querySelectorAll(".source")[i].click(),
  shift: i => send(pieces[i], MouseEvent, "click", {shiftKey: true}),
  focus: i => pieces[i].focus(), blur: () => document.activeElement.blur(),
  key: name => key(name, false), more: name => key(name, true), box: () => document.getElementById("first").click(),
};
const shot = () => ({
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
  chips: Array.from(document.querySelectorAll(".chip"), c => [c.textContent, c.getAttribute("aria-expanded"), c.title]),
  zero: document.querySelector("#bar .track")?.style.getPropertyValue("--zero"),
  titles: Object.fromEntries(pieces.flatMap((p, i) => p.title ? [[i, p.title]] : [])),
  ...Object.fromEntries(["summary", "sources", "others", "share", "low", "high", "keys"].map(id => [id, textOf(id)])),
});
withFocus(() => {
  const seen = ACTS.map(([act, value]) => { acts[act](value); return shot(); });
  document.body.append(Object.assign(document.createElement("pre"), {id: "seen", textContent: JSON.stringify(seen)}));
});
</script></body>"""
)


def driven(folder: Path, one: Generation, acts: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Do things with the page in a browser; return what is to be seen after each."""
    page = re.sub('<meta http-equiv="Content-Security-Policy".*?>', "", generation_page(one))
    path = folder / "driven.html"
    path.write_text(page.replace("</body>", DRIVER.replace("ACTS", json.dumps(acts))), encoding="utf-8")
    dom = in_browser(path, "--dump-dom", until='id="seen"')
    found = re.search('<pre id="seen">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[-2000:]
    return json.loads(unescape(found[1]))


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


class Held:
    """A file's address with what is held there."""

    def __init__(self, path: Path, fragment: str) -> None:
        self.parent, self._address = path.parent, path.as_uri() + fragment

    def as_uri(self) -> str:
        return self._address
