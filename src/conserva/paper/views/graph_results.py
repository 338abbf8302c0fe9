"""The graph experiment in the terminal, and all of its views in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text as Line

from ..._util.files import write_text
from ..._util.text import displayed
from ...results.saving import drawn
from ...views.evaluation_terminal import TITLES, Column, _bare, _blocks, _table, heading, short, value_text
from ...views.explanation_figure import draw
from ...views.explanation_page import page as examples_page
from ..experiments.findings import row_of
from ..experiments.graph_plan import GRAPH_OURS, GRAPH_ROWS
from ..experiments.graph_result import GraphResult
from ..experiments.published import published, published_accuracy
from .classifiers import NONE
from .graph_columns import MASKINGS, MEASURES, TITLE_OF, Measured, columns, is_quick, name_of, samples_of, steps_of
from .graph_models import reached
from .graph_panels import draw_graph_books, draw_graph_curves
from .graphs_page import CONSERVATION, CURVES, EXAMPLES, METRICS, examples_name, page
from .results import NOTES, PAGE, TRIED
from .results_page import QUICK


def summary(results: Sequence[GraphResult], console: Console | None = None) -> None:
    """Print what the models reached and both tables; where a table is wider than the terminal, in several blocks."""
    console = console or Console()
    results = displayed(results)
    marked = console.color_system is None  # such a terminal has no bold either
    if is_quick(results):
        console.print(Line(QUICK, style="bold"))
    console.print(Line(_protocol(results), style="dim"))
    names = Column("", ("measure", "mean", "lowest", "highest", "always one class", "the paper's"))
    _print(console, "Models, on the test split", names, [[_reached(one)] for one in results], len(names.cells))
    rows = [row for row in GRAPH_ROWS if any(one.has(row.method) for one in columns(results))]
    methods = [row.method for row in rows]
    above = sum(row.group != "yardstick" for row in rows)
    for metric in METRICS:
        groups = [
            [*(_means(each, metric, methods, marked) for each in columns([one])), _theirs(one, metric, methods, marked)]
            for one in results
        ]
        _print(console, heading(metric), Column("method", tuple(row.title for row in rows)), groups, above)
    console.print()
    console.print(Line(
        f"{'* marks' if marked else 'bold:'} {TITLE_OF[GRAPH_OURS]} where it beats all other methods of the paper, "
        "every paired 95 % interval leaving out 0", style="dim",
    ))  # fmt: skip
    for mask in dict.fromkeys(one.mask for one in columns(results)):
        console.print(Line(f"{mask}: {MASKINGS.get(mask, '')}", style="dim"))
    every = columns(results)
    for metric in METRICS:
        found = [one.title for one in every if one.is_best(metric)]
        console.print(Line(f"best by {TITLES[metric]} in {len(found)} of {len(every)}: {', '.join(found) or NONE}"))


def write(results: Sequence[GraphResult], out: Path) -> list[Path]:
    """Write the page, with what `notes.md` of the folder says, and its figures; return what was written."""
    out.mkdir(parents=True, exist_ok=True)
    drawn(out / CURVES, lambda path: draw_graph_curves(results, path))
    drawn(out / CONSERVATION, lambda path: draw_graph_books(results, path))
    shown = [one for one in results if one.examples]
    ours = [each for one in shown for each in one.examples if each.method == GRAPH_OURS]  # all would be megabytes
    write_text(out / EXAMPLES, examples_page(ours))
    for one in shown:
        drawn(out / examples_name(one), partial(draw, one.examples))
    notes, tried = out / NOTES, out / TRIED
    text = page(
        results,
        notes.read_text(encoding="utf-8") if notes.exists() else "",
        json.loads(tried.read_text(encoding="utf-8")) if tried.exists() else (),
    )
    write_text(out / PAGE, text)
    return [out / name for name in (PAGE, CURVES, CONSERVATION, EXAMPLES, *map(examples_name, shown))]


def _print(console: Console, title: str, names: Column, groups: Sequence[Sequence[Column]], above: int) -> None:
    console.print()
    console.print(Line(title, style="bold"))
    room = console.width - names.width
    for block in _blocks([part for group in groups for part in _fitting(group, room)], room):
        console.print(_table([names, *block], above))


def _fitting(group: Sequence[Column], room: int) -> Sequence[Sequence[Column]]:
    """Return a dataset's columns as one group, or each alone where they do not fit side by side."""
    return list(_blocks([[one] for one in group], room))


def _protocol(results: Sequence[GraphResult]) -> str:
    protocol = next(iter(results[0].evaluations.values())).protocol
    steps = [f"{name_of(one)} {samples_of(one):,} graphs, {steps_of(one)}" for one in results]
    return " · ".join(
        [f"protocol {value_text(protocol.get('name'))}", f"target class {value_text(protocol.get('target'))}", *steps]
    )


def _reached(one: GraphResult) -> Column:
    each = reached(one)
    theirs = published_accuracy(one.dataset, one.metric)
    always = 0.5 if one.metric == "roc_auc" else one.majority  # by definition, whatever the class
    known = (f"{value:.1%}" for value in (one.reached(), min(each), max(each), always))
    return Column(one.title, (MEASURES[one.metric], *known, NONE if theirs is None else f"{theirs:.1%}"))


def _means(one: Measured, metric: str, methods: Sequence[str], marked: bool) -> Column:
    found = [row_of(one.evaluation, method) for method in methods]
    cells = [NONE if row is None else _bare(short(getattr(row, metric).mean)) for row in found]
    best = frozenset([methods.index(GRAPH_OURS)]) if one.is_best(metric) else frozenset()
    if marked:
        cells = [text + ("*" if i in best else " ") for i, text in enumerate(cells)]
    return Column(one.title, tuple(cells), best)


def _theirs(one: GraphResult, metric: str, methods: Sequence[str], marked: bool) -> Column:
    found = [published(metric, one.dataset, method) for method in methods]
    cells = [NONE if value is None else _bare(short(value.value)) for value in found]
    return Column(f"{name_of(one)} paper", tuple(text + " " * marked for text in cells))
