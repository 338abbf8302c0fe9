"""Views of a generation: in a real browser the page lights what `Generation.row` and `span` say."""

import io
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import conserva
from conserva.results.explanation import Explanation, Sink
from conserva.results.generation import Generation
from conserva.views import colours
from conserva.views.generation_page import page as generation_page
from conserva.views.generation_terminal import show_generation
from conserva.views.wording import number
from made_up_explanations import BROWSER, in_browser
from made_up_generations import HOSTILE, ONE, READ, WRITTEN, generation

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


# The page in a real browser

DRIVER = """<script>
const pieces = Array.from(document.querySelectorAll(".piece")), text = document.getElementById("text");
const textOf = id => document.getElementById(id).textContent;
const send = (to, kind, name, more) => to.dispatchEvent(new kind(name, {bubbles: true, cancelable: true, ...more}));
const key = (name, shiftKey) => send(document.activeElement, KeyboardEvent, "keydown", {key: name, shiftKey});
const acts = {
  hover: i => send(pieces[i], MouseEvent, "mouseover"), leave: () => send(text, MouseEvent, "mouseleave"),
  click: i => send(pieces[i], MouseEvent, "click"), shift: i => send(pieces[i], MouseEvent, "click", {shiftKey: true}),
  focus: i => pieces[i].focus(), blur: () => document.activeElement.blur(),
  key: name => key(name, false), more: name => key(name, true), box: () => document.getElementById("first").click(),
};
const shot = () => ({
  scores: Object.fromEntries(pieces.flatMap((p, i) => p.dataset.score ? [[i, Number(p.dataset.score)]] : [])),
  colours: Object.fromEntries(pieces.flatMap((p, i) => p.style.getPropertyValue("--l")
    ? [[i, ["--l", "--li", "--d", "--di"].map(n => p.style.getPropertyValue(n))]] : [])),
  selected: pieces.flatMap((p, i) => p.getAttribute("aria-selected") === "true" ? [i] : []),
  stops: pieces.flatMap((p, i) => p.tabIndex === 0 ? [i] : []), focus: pieces.indexOf(document.activeElement),
  ledger: Object.fromEntries(Array.from(document.querySelectorAll("#bar span"),
    s => [s.dataset.entry, Number(s.dataset.value)])),
  bar: getComputedStyle(document.getElementById("bar")).display, hash: location.hash,
  ...Object.fromEntries(["summary", "sources", "others", "share", "low", "high", "keys"].map(id => [id, textOf(id)])),
});
const play = tries => {  // keys come to a page that has the focus, which a browser under load gives it late
  if (!document.hasFocus() && tries) { setTimeout(play, 20, tries - 1); return; }
  const seen = ACTS.map(([act, value]) => { acts[act](value); return shot(); });
  document.body.append(Object.assign(document.createElement("pre"), {id: "seen", textContent: JSON.stringify(seen)}));
};
play(50);
</script></body>"""


def driven(folder: Path, one: Generation, acts: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Do things with the page in a browser; return what is to be seen after each."""
    page = re.sub('<meta http-equiv="Content-Security-Policy".*?>', "", generation_page(one))
    path = folder / "driven.html"
    path.write_text(page.replace("</body>", DRIVER.replace("ACTS", json.dumps(acts))), encoding="utf-8")
    dom = in_browser(path, "--dump-dom")
    found = re.search('<pre id="seen">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[-2000:]
    return json.loads(unescape(found[1]))


def lit(seen: dict[str, Any]) -> dict[int, float]:
    return {int(i): score for i, score in seen["scores"].items()}


def agrees(seen: dict[str, Any], expected: Explanation) -> None:
    """The page has the scores, the number and the books of an explanation."""
    assert lit(seen) == pytest.approx(dict(enumerate(expected.scores)), rel=2e-3, abs=1e-3)
    assert seen["ledger"] == pytest.approx(
        {name: getattr(expected.ledger, name) for name in ("inputs", "positions", "biases", "gap")}, rel=1e-4
    )
    assert f"logit {number(expected.output)}" in seen["summary"]
    assert seen["keys"].endswith(f"= {number(expected.output)}")
    share = Sink.of(0, expected.features, expected.scores).share
    assert f"{share:.0%} of the absolute relevance" in seen["share"]


def coloured(scores: dict[int, float]) -> dict[str, list[str]]:
    """The colours that the other views give scores, on both grounds."""
    scale = max(map(abs, scores.values()))
    found = {}
    for i, score in scores.items():
        shades = [colours.shade(score, scale, ground) for ground in (colours.LIGHT, colours.DARK)]
        found[str(i)] = [colours.hexadecimal(one) for shade in shades for one in (shade, colours.ink(shade))]
    return found


in_a_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


@in_a_browser
def test_pointing_and_clicking(tmp_path: Path) -> None:
    acts: list[tuple[str, Any]] = [
        ("hover", START + 6), ("hover", START + 2), ("leave", None),
        ("click", START + 1), ("shift", START + 4), ("hover", START), ("shift", START), ("box", None), ("box", None),
        ("click", START + 3), ("click", START + 3), ("leave", None),
        ("hover", 4), ("click", 4), ("shift", START + 3),
    ]  # fmt: skip
    shots = iter(driven(tmp_path, ONE, acts))

    shades = next(shots)
    agrees(shades, ONE.row(6))
    assert shades["colours"] == coloured({i: float(f"{score:.4g}") for i, score in enumerate(ONE.steps[6].scores)})
    hovered, step = next(shots), ONE.steps[2]
    agrees(hovered, ONE.row(2))
    assert hovered["colours"] == coloured({i: float(f"{score:.4g}") for i, score in enumerate(step.scores)})
    assert hovered["selected"] == [START + 2]
    assert hovered["summary"] == f"“↵” · logit {number(step.output)} · probability {step.probability:.1%}"
    assert hovered["others"] == f"most probable here: “↵” 50.0%, “{HOSTILE}” 12.5%"
    assert hovered["sources"].startswith(f"mostly from “<s>” {number(step.scores[0])}")
    assert (hovered["low"], hovered["high"]) == (number(step.scores[0]), number(-step.scores[0]))
    assert hovered["hash"] == ""
    left = next(shots)
    assert (left["scores"], left["colours"], left["selected"]) == ({}, {}, [])
    assert (left["summary"], left["keys"], left["bar"]) == ("", "", "none")

    assert next(shots)["hash"] == "#step=1"
    span = next(shots)
    agrees(span, ONE.span(1, 4))
    assert span["selected"] == [START + i for i in range(1, 5)]
    assert span["hash"] == "#step=1-4"
    assert span["others"] == ""
    assert span["summary"].startswith("“,↵ a & b [bold]x[/bold]” · logit ")
    assert next(shots) == span  # what is held stays
    backwards = next(shots)
    agrees(backwards, ONE.span(0, 1))
    without = next(shots)
    agrees(without, ONE.span(0, 1))
    assert without["colours"].keys() == {str(i) for i in lit(backwards) if i}
    largest = max((i for i in lit(backwards) if i), key=lambda i: abs(lit(backwards)[i]))
    assert without["colours"][str(largest)][0] in map(colours.hexadecimal, (colours.FOR, colours.AGAINST))
    assert "it is not shown, but counted in the ledger" in without["share"]
    assert "<s>" not in without["sources"]
    assert without["hash"] == "#step=0-1&first=out"
    assert next(shots) == backwards

    assert next(shots)["hash"] == "#step=3"
    assert next(shots)["hash"] == ""  # a second click lets go
    assert not next(shots)["scores"]
    column = next(shots)
    given = {START + j: step.scores[4] for j, step in enumerate(ONE.steps)}
    assert lit(column) == pytest.approx(given, rel=2e-3)
    assert column["summary"] == f"“ <b>France” contributed {number(sum(given.values()))} to the generated tokens"
    assert (column["bar"], column["share"], column["selected"]) == ("none", "", [4])
    assert next(shots)["hash"] == "#feature=4"
    assert next(shots)["selected"] == [START + 3]  # a span is of written tokens alone


@in_a_browser
def test_with_the_keyboard(tmp_path: Path) -> None:
    last = len(ONE.features) - 1
    keys: list[
        tuple[tuple[str, Any], Any, str]
    ] = [  # what is done, the step or steps or the feature shown, the address
        (("focus", START), 0, ""),
        (("key", "ArrowRight"), 1, ""),
        (("key", "Enter"), 1, "#step=1"),
        (("more", "ArrowRight"), (1, 2), "#step=1-2"),
        (("more", "ArrowRight"), (1, 3), "#step=1-3"),
        (("more", "ArrowLeft"), (1, 2), "#step=1-2"),
        (("key", "ArrowRight"), 3, "#step=3"),
        (("key", "Escape"), 3, ""),
        (("key", "Home"), 0, ""),
        (("more", "ArrowLeft"), 0, ""),  # what was read is in no span
        (("key", "ArrowLeft"), "read", ""),
        (("key", "End"), last - START, ""),
        (("key", "ArrowRight"), last - START, ""),
        (("key", " "), last - START, f"#step={last - START}"),
        (("key", "Escape"), last - START, ""),
        (("blur", None), None, ""),
    ]
    for seen, (_, shown, address) in zip(driven(tmp_path, ONE, [act for act, _, _ in keys]), keys, strict=True):
        assert seen["hash"] == address
        assert len(seen["stops"]) == 1  # Tab comes to the text once
        if shown is None:
            assert not seen["scores"]
        elif shown == "read":
            assert (seen["focus"], seen["selected"]) == (START - 1, [START - 1])
        else:
            first, end = shown if isinstance(shown, tuple) else (shown, shown)
            agrees(seen, ONE.span(first, end))
            assert seen["selected"] == [START + i for i in range(first, end + 1)]
            assert seen["focus"] == seen["stops"][0] == START + end


@in_a_browser
@pytest.mark.parametrize("ledger", [True, False])
def test_an_address_holds_a_token_under_the_policy_and_two_inputs_are_two_blocks(tmp_path: Path, ledger: bool) -> None:
    one = replace(ONE, sections=(("source", START - 1), ("answer so far", len(WRITTEN) + 1)))
    if not ledger:
        one = replace(one, steps=tuple(replace(step, ledger=None) for step in one.steps))
    path = tmp_path / "page.html"
    path.write_text(generation_page(one), encoding="utf-8")
    dom = in_browser(Held(path, "#step=2-3&first=out"), "--dump-dom")  # type: ignore[arg-type]
    found = [(int(i), score) for i, score in re.findall(r'data-i="(\d+)"[^>]* data-score="(.*?)"', dom)]
    assert [float(score) for _, score in found] == pytest.approx(one.span(2, 3).scores, rel=2e-3, abs=1e-3)
    assert re.findall('<h2>(.*?)</h2><div class="pieces" role="listbox"', dom) == ["source", "answer so far"]
    assert ("no ledger: this method does not decompose the output" in dom.split("<script")[0]) == (not ledger)
    assert "img" not in Pieces(dom).tags


class Held:
    """A file's address with what is held there."""

    def __init__(self, path: Path, fragment: str) -> None:
        self.parent, self._address = path.parent, path.as_uri() + fragment

    def as_uri(self) -> str:
        return self._address


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
