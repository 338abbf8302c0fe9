"""Hostile text in every result and every view: nothing of it acts on a terminal, a page, a picture or a file's name."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape, unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

import made_up_graphs
from attacking import SEED, add_cases, rng_of, times
from browser import Pages, in_a_browser
from conserva.auditing.doctor import Finding
from conserva.paper.views import page as experiment_page
from conserva.paper.views import results
from conserva.results.explanation import Sink
from conserva.views import (
    audit_page,
    audit_terminal,
    bias_figure,
    bias_page,
    bias_summary,
    curves,
    doctor,
    evaluation_page,
    evaluation_terminal,
    explanation_figure,
    explanation_page,
    generation_page,
    generation_terminal,
    pictures,
    terminal,
    trace,
    trace_page,
    waterfall,
)
from conserva.views.molecule import molecule_svg
from conserva.views.superpixels import superpixels_svg
from drawn import image, molecule
from hostile_results import harmless, poisoned
from leaving import SGR, WIDE, check_markdown, check_page, check_svg, check_terminal
from made_up_audits import audit as made_up_audit
from made_up_bias import study
from made_up_evaluations import NAMES, evaluation
from made_up_experiments import result as text_result
from made_up_explanations import explanation
from made_up_generations import generation
from made_up_images import explained as patches
from made_up_traces import SHOWN

# Every view


@dataclass(frozen=True)
class View:
    """How a result is made, what draws it, and as what."""

    make: Callable[[], Any]
    draw: Callable[..., Any]
    kind: str
    cases: int = 2
    keep: frozenset[str] = frozenset()


PATHS = frozenset({"method", "rules", "kind", "a", "b"})
"""What experiments look results up by."""


def texts() -> list[Any]:
    one = explanation(["[CLS]", "a", "joy", "of", "a", "film", "[SEP]"], provenance={"weights": "abc", "seed": 3})
    pair = replace(one, sections=(("text", 4), ("pair", 3)), method="gi", ledger=None, sink=Sink("[CLS]", 1.0, 0.5, 0))
    return [one, pair]


def refused(rows: Any) -> tuple[list[Any], dict[str, str]]:
    kept = [one for one in rows if not isinstance(one, tuple)]
    return kept, dict(one for one in rows if isinstance(one, tuple))


def compare(rows: Any, console: Console) -> None:
    kept, others = refused(rows)
    terminal.compare({**{one.method: one for one in kept}, **others}, console)


def pictured() -> list[Any]:
    return [molecule(), image(), patches()]


def findings() -> list[Finding]:
    return [
        Finding("books", True, 0.1, "they close"),
        Finding("maps", False, None, "none"),
        Finding("x", None, None, ""),
    ]


def audits() -> list[Any]:
    return [made_up_audit(rules, layers=1) for rules in ("gi", "exact")]


def norm_picture(ones: Any, path: Path) -> None:
    waterfall.draw_norm(ones[0], ones[0].norms[0].module, path)


def norm_svg(ones: Any) -> str:
    return waterfall.norm_svg(ones[0], ones[0].norms[0].module)


def framed(*figures: str) -> str:
    return f"<figure>{''.join(figures)}</figure>"


class Refused(tuple[str, str]):
    """A method that was refused, and why."""


VIEWS: dict[str, View] = {
    "explanations in a terminal": View(texts, terminal.show, "lines", 3),
    "methods in a terminal": View(lambda: [*texts(), Refused(("a-flow", "needs maps"))], compare, "lines", 3),
    "explanations on a page": View(texts, explanation_page.page, "page", 3),
    "an explanation in a notebook": View(lambda: texts()[0], lambda one: one._repr_html_(), "page"),
    "explanations as SVG": View(texts, explanation_figure.draw, "svg", 1),
    "explanations as PNG": View(texts, explanation_figure.draw, "png", 1),
    "explanations as PDF": View(texts, explanation_figure.draw, "pdf", 1),
    "pictures in a terminal": View(pictured, terminal.show, "terminal", 1),
    "pictures on a page": View(pictured, explanation_page.page, "page", 1),
    "a picture as SVG": View(molecule, lambda one: pictures.card_svg(one), "drawn"),
    "patches as SVG": View(patches, lambda one: pictures.svg(one), "drawn"),
    "a molecule as SVG": View(molecule, lambda one: molecule_svg(one), "drawn", 1),
    "superpixels as SVG": View(image, lambda one: superpixels_svg(one), "drawn", 1),
    "a gallery as SVG": View(pictured, pictures.gallery, "drawn", 1),
    "pictures as PNG": View(pictured, explanation_figure.draw, "png", 1),
    "a generation in a terminal": View(generation, generation_terminal.show_generation, "terminal"),
    "a generation on a page": View(generation, generation_page.page, "page"),
    "a trace in a terminal": View(lambda: SHOWN, trace.show_trace, "terminal"),
    "a trace on a page": View(lambda: SHOWN, trace_page.page, "page"),
    "a trace in a notebook": View(lambda: SHOWN, lambda one: one._repr_html_(), "page"),
    "a trace as SVG": View(lambda: SHOWN, trace.draw_trace, "svg", 1),
    "a trace as PNG": View(lambda: SHOWN, trace.draw_trace, "png", 1),
    "an audit in a terminal": View(
        audits, lambda ones, console: audit_terminal.show(ones[0], console, full=True), "terminal"
    ),
    "audits in a terminal": View(audits, audit_terminal.compare, "lines"),
    "audits on a page": View(audits, audit_page.page, "page", 1),
    "a waterfall as SVG": View(audits, waterfall.draw_waterfall, "svg", 1),
    "a norm as SVG": View(audits, norm_picture, "svg", 1),
    "sums as PNG": View(audits, waterfall.draw_scatter, "png", 1),
    "an evaluation in a terminal": View(evaluation, evaluation_terminal.show, "lines"),
    "an evaluation on a page": View(evaluation, evaluation_page.page, "page", 1),
    "curves as SVG": View(evaluation, curves.draw_curves, "svg", 1),
    "sums of methods as PNG": View(evaluation, curves.draw_conservation, "png", 1),
    "figures of an evaluation in a page": View(
        evaluation, lambda one: framed(curves.curves_svg(one), curves.conservation_svg(one)), "drawn", 1
    ),
    "figures of audits in a page": View(
        audits,
        lambda ones: framed(waterfall.waterfall_svg(ones), waterfall.scatter_svg(ones), norm_svg(ones)),
        "drawn",
        1,
    ),
    "a figure of a bias study in a page": View(
        lambda: study(mentions=24), lambda one: framed(bias_figure.histograms_svg(one)), "drawn", 1
    ),
    "a bias study in a terminal": View(lambda: study(mentions=24), bias_summary.show, "lines"),
    "a bias study on a page": View(lambda: study(mentions=24), bias_page.page, "page", 1),
    "histograms as SVG": View(lambda: study(mentions=24), bias_figure.draw_histograms, "svg", 1),
    "checks in a terminal": View(findings, lambda ones, to: doctor.show("m", "exact", ones, to), "lines"),
    "the text experiment in a terminal": View(lambda: [text_result()], results.summary, "lines", keep=PATHS),
    "the text experiment as Markdown": View(lambda: [text_result()], experiment_page.page, "markdown", keep=PATHS),
    "the text experiment in a folder": View(lambda: [text_result()], results.write, "folder", 1, PATHS),
    "the graph experiment in a terminal": View(lambda: [made_up_graphs.result()], results.summary, "lines", keep=PATHS),
    "the graph experiment as Markdown": View(
        lambda: [made_up_graphs.result()], experiment_page.page, "markdown", keep=PATHS
    ),
    "the graph experiment in a folder": View(lambda: [made_up_graphs.result()], results.write, "folder", 1, PATHS),
}


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, view in VIEWS.items() for case in range(times(view.cases))]
)
def test_no_text_acts_on_what_it_is_shown_on(
    name: str, case: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    view = VIEWS[name]
    hostile, twin, written = poisoned(view.make(), rng_of(f"{name} {case}"), view.keep)
    add_cases("views of hostile results")
    add_cases("hostile texts", len(written))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(view, hostile, twin, tmp_path)
        said = capfd.readouterr()
        assert (said.out, said.err) == ("", "")
    except Exception as error:
        raise AssertionError(f"ATTACK_SEED={SEED}, {name}, case {case}: {error!r:.2000}\ntexts: {written}") from error


def check(view: View, hostile: Any, twin: Any, folder: Path) -> None:
    if view.kind in ("terminal", "lines"):
        check_terminal(view.draw, hostile, twin, lines=view.kind == "lines")
    elif view.kind == "page":
        check_page(view.draw, hostile, twin)
    elif view.kind == "drawn":
        check_svg(view.draw(hostile), view.draw(twin))
    elif view.kind == "markdown":
        check_markdown(view.draw, hostile, twin)
    elif view.kind == "folder":
        paths = view.draw(hostile, folder / "out")
        there = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        assert there == sorted(f"out/{path.name}" for path in paths)
        assert all(re.fullmatch(r"[\w.-]{1,255}", os.path.basename(path)) for path in there)
        page = (folder / "out" / "README.md").read_text(encoding="utf-8")
        assert set(re.findall(r"\]\(([^)#]+)\)", page)) <= {path.name for path in paths}
    else:
        first, second = (folder / f"{name}.{view.kind}" for name in ("hostile", "twin"))
        view.draw(hostile, first)
        assert first.stat().st_size > 1000
        if view.kind == "svg":
            view.draw(twin, second)
            check_svg(first.read_text(encoding="utf-8"), second.read_text(encoding="utf-8"))


# What the checks rest on


def test_every_free_text_of_a_result_is_replaced_and_its_twin_has_the_same_shape() -> None:
    one, others = texts()[1], {"a-flow": "needs maps"}
    hostile, twin, written = poisoned([one, Finding("books", True, None, "text"), others], rng_of("generator"))
    found = hostile[0]
    names = {found.text, found.target, found.method, found.model, found.sink.token, hostile[1].check, hostile[1].text}
    assert names | set(found.features) | {name for name, _ in found.sections} <= set(written)
    assert (found.scores, found.special) == (one.scores, one.special)
    assert hostile[2] == others  # which is no field
    assert [*map(len, twin[0].features)] == [*map(len, found.features)]
    assert all(harmless(text) == text for text in (*twin[0].features, twin[0].target, twin[0].model))


def test_texts_can_still_be_read() -> None:
    """What is shown is the text itself, with signs for what cannot be shown."""
    odd = ["\x1b[31m", "\n", "a\tb", ":smile:", "[bold]x[/]", "$x^2$", "\x9b", "<b>", "👩\u200d👩", "é", "\ud800"]
    signs = ["\\x1b[31m", "↵", "a⇥b", ":smile:", "[bold]x[/]", "$x^2$", "\\x9b", "<b>", "👩\u200d👩", "é", "\\ud800"]
    one = explanation(odd, target="yes\nno", model="[link=file:///etc/passwd]x[/link]")
    page = explanation_page.page([one])
    assert [unescape(token) for token in re.findall(r'<span class="token.*?>(.*?)</span>', page)] == signs
    output = io.StringIO()
    terminal.show([one], Console(file=output, width=WIDE, force_terminal=True, color_system="truecolor"))
    lines = SGR.sub("", output.getvalue()).splitlines()
    assert lines[0] == "yes↵no: +1.500, probability 90.0% · exact · [link=file:///etc/passwd]x[/link]"
    assert "".join(lines[1].split()) == "".join("".join(signs).split())


def test_names_are_no_markup_in_a_table() -> None:
    output = io.StringIO()
    names = ["[bold]gi[/bold]", ":smile:", "[/]"]
    rows: dict[str, Any] = {name: explanation(["a"], method=name) for name in names}
    terminal.compare({**rows, "[i]x": "[b]why"}, Console(file=output, width=WIDE))
    firsts = [line.split()[0] for line in output.getvalue().splitlines() if line.strip()]
    assert [first for first in firsts if first in (*names, "[i]x")] == [*names, "[i]x"]
    generation_terminal.show_generation(generation(score="[/]:smile:"), Console(file=output, width=WIDE))
    assert re.search(r"\[/\]:smile: +came from", output.getvalue())
    found = evaluation(NAMES[:2], provenance={"weights": Path("\x1b[31m")})
    evaluation_terminal.show(
        replace(found, methods=(replace(found.methods[0], method="[/]:x:"),)), Console(file=output, width=WIDE)
    )
    assert "\n[/]:x: " in output.getvalue()
    assert r"<dd>\x1b[31m</dd>" in evaluation_page.page(found)
    results.summary([text_result(title="[/]:smile:")], Console(file=output, width=WIDE))
    assert output.getvalue().count(" [/]:smile:\n") >= 3


def test_trainings_and_notes_beside_a_result_are_text_too() -> None:
    trial = {"name": "bace", "tag": "<b>|x\n\x1b", "seed": 0, "recipe": {"`a": "[x](y)"}}
    page = experiment_page.page([made_up_graphs.result()], "*mine*\n\x1b[31m", [trial])
    assert r"&lt;b&gt;&#124;x↵&#92;x1b" in page
    assert "`&#96;a` &#91;x&#93;(y)" in page
    assert "*mine*\n\\x1b[31m" in page
    trial |= {"name": "sst2", "recipe": {}}
    page = experiment_page.page([text_result()], "*mine*\n\x1b[31m", [trial])
    assert r"&lt;b&gt;&#124;x↵&#92;x1b" in page
    assert "*mine*\n\\x1b[31m" in page


@pytest.mark.parametrize("text", ["$x^2$", r"\frac{1}{2}", "a_b", "$"])
def test_no_text_is_a_formula_in_a_figure(text: str) -> None:
    found = evaluation((*NAMES[:2], "gi"), model=text)
    renamed = replace(found, methods=tuple(replace(one, method=f"{text} {one.method}") for one in found.methods))
    groups = study(mentions=24)
    groups = replace(groups, groups=tuple(replace(one, name=f"{text} {one.name}") for one in groups.groups))
    audits = [replace(made_up_audit(layers=1), rules=text)]
    for svg, said in (
        (curves.curves_svg(renamed), f"{text} gi"),
        (curves.conservation_svg(renamed), f"{text} gi"),
        (bias_figure.histograms_svg(groups), f"{text} female"),
        (waterfall.waterfall_svg(audits), text),
    ):
        assert said in "".join(ElementTree.fromstring(svg).itertext())


# A real browser

OWNED = """<script>
const owned = () => console.error("owned");
for (const name of ["alert", "confirm", "prompt", "print", "open"]) window[name] = owned;
</script>"""


@in_a_browser
def test_in_a_browser_nothing_of_a_text_runs(pages: Pages) -> None:
    """Without their policy, what runs or loads is told, and with it what it forbids: texts alone do neither."""
    drawn = {}
    for name, view in VIEWS.items():
        if view.kind == "page":
            hostile, _, written = poisoned(view.make(), rng_of(f"{name} in a browser"), view.keep)
            add_cases("hostile texts", len(written))
            drawn[name] = view.draw(hostile)
    control = drawn["explanations on a page"].replace("</body>", "<img src=x onerror=owned()></body>")
    for without_policy, told in ((True, "owned"), (False, "violates the following Content Security Policy")):
        opened = pages.open(framed(*map(in_frame, drawn.values())), without_policy=without_policy)
        assert len(opened.frames) > len(drawn)
        assert not pages.problems, (SEED, pages.problems)
        pages.open(in_frame(control), without_policy=without_policy)
        assert any(told in problem for problem in pages.problems), pages.problems
        pages.problems.clear()


def in_frame(page: str) -> str:
    return f'<iframe srcdoc="{escape(OWNED + page)}"></iframe>'
