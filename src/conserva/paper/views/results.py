"""The results of an experiment in the terminal, and all of their views in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text as Line

from ..._util.files import write_text
from ..._util.text import displayed
from ...results.explanation import Explanation
from ...results.saving import drawn
from ...views.evaluation_terminal import Column, _blocks, _table
from ...views.evaluation_wording import TITLES, heading
from ...views.explanation_figure import draw
from ...views.explanation_page import page as examples_page
from ..experiments.findings import TableColumn, columns, short_name
from ..experiments.published import published, published_accuracy
from ..experiments.result import AnyResult, GraphResult, reached
from ..experiments.rows import OURS, Row, method_of
from .cells import MEASURES, METRICS, NONE, number, percent
from .page import CONSERVATION, CURVES, PAGE, QUICK, is_quick, page
from .panels import draw_all_conservation, draw_all_curves
from .wording import MASKINGS, wording_of

NOTES = "notes.md"
"""Notes about the run, written by hand: they are put on the page."""

TRIED = "tried.json"
"""Trainings with other settings, if they were kept: they are put on the page."""


def summary(results: Sequence[AnyResult], console: Console | None = None) -> None:
    """Print what the models reached and both tables; a table wider than the terminal is printed in several blocks."""
    console = console or Console()
    results = displayed(results)
    marked = console.color_system is None  # such a terminal has no bold either
    if is_quick(results):
        console.print(Line(QUICK, style="bold"))
    console.print(Line(wording_of(results).protocol(results), style="dim"))
    names = Column("", ("measure", "mean", "lowest", "highest", "always one class", "the paper's"))
    _print(console, "Models, on the test split", names, [[_reached(one)] for one in results], len(names.cells))
    every = columns(results)
    rows = [row for row in results[0].rows if any(one.row(row.title) for one in every)]
    for metric in METRICS:
        _print(
            console,
            heading(metric),
            Column("method", tuple(row.title for row in rows)),
            [_columns(one, metric, rows, marked) for one in results],
            sum(row.group != "yardstick" for row in rows),
        )
    console.print()
    console.print(Line(
        f"{'* marks' if marked else 'bold:'} {OURS} where it beats all other methods of the paper, every paired 95 % "
        "interval excluding 0", style="dim",
    ))  # fmt: skip
    for mask in dict.fromkeys(one.mask for one in every if one.mask):
        console.print(Line(f"{mask}: {MASKINGS.get(mask, '')}", style="dim"))
    for metric in METRICS:
        found = [one.title for one in every if one.is_best(metric)]
        console.print(Line(f"best by {TITLES[metric]} in {len(found)} of {len(every)}: {', '.join(found) or NONE}"))


def write(results: Sequence[AnyResult], out: Path) -> list[Path]:
    """Write the page, with `notes.md` and `tried.json` of the folder, and its figures; return what was written."""
    out.mkdir(parents=True, exist_ok=True)
    words = wording_of(results)
    drawn(out / CURVES, lambda path: draw_all_curves(results, path))
    drawn(out / CONSERVATION, lambda path: draw_all_conservation(results, path))
    shown = [one for one in results if one.examples]
    write_text(out / words.examples_page, examples_page([each for one in shown for each in _on_page(one)]))
    for one in shown:
        drawn(out / words.examples_picture(one), partial(draw, one.examples))
    notes, tried = out / NOTES, out / TRIED
    text = page(
        results,
        notes.read_text(encoding="utf-8") if notes.exists() else "",
        json.loads(tried.read_text(encoding="utf-8")) if tried.exists() else (),
    )
    write_text(out / PAGE, text)
    return [
        out / name for name in (PAGE, CURVES, CONSERVATION, words.examples_page, *map(words.examples_picture, shown))
    ]


def _on_page(one: AnyResult) -> list[Explanation]:
    """Return the examples with all numbers: of graphs by the paper's own method only, since all would be megabytes."""
    ours = method_of(one.rows, OURS)
    return [each for each in one.examples if not isinstance(one, GraphResult) or each.method == ours]


def _print(console: Console, title: str, names: Column, groups: Sequence[Sequence[Column]], above: int) -> None:
    console.print()
    console.print(Line(title, style="bold"))
    room = console.width - names.width
    # The columns of a dataset are kept together where they fit.
    fitting = [part for group in groups for part in _blocks([[one] for one in group], room)]
    for block in _blocks(fitting, room):
        console.print(_table([names, *block], above))


def _reached(one: AnyResult) -> Column:
    each = reached(one)
    always = 0.5 if one.metric == "roc_auc" else one.majority  # by definition, whatever the class
    known = (sum(each) / len(each), min(each), max(each), always, published_accuracy(one.dataset, one.metric))
    return Column(one.title, (MEASURES[one.metric], *map(percent, known)))


def _columns(result: AnyResult, metric: str, rows: Sequence[Row], marked: bool) -> list[Column]:
    """Return the columns of a dataset, one for each masking; if there are several, also the authors' numbers."""
    found = columns([result])
    shown = [_means(one, metric, rows, marked) for one in found]
    if found[0].mask:
        theirs = [published(metric, result.dataset, row.method) for row in rows]
        cells = tuple((NONE if one is None else number(one.value)) + " " * marked for one in theirs)
        shown.append(Column(f"{short_name(result)} paper", cells))
    return shown


def _means(one: TableColumn, metric: str, rows: Sequence[Row], marked: bool) -> Column:
    best = frozenset(i for i, row in enumerate(rows) if row.title == OURS and one.is_best(metric))
    cells = [number(one.mean(metric, row.title)) for row in rows]
    if marked:
        cells = [text + ("*" if i in best else " ") for i, text in enumerate(cells)]
    return Column(one.title, tuple(cells), best)
