"""The text experiment in the terminal, and all of its views in a folder."""

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
from ...views.evaluation_terminal import TITLES, Column, _bare, _blocks, _table, heading, protocol_line, short
from ...views.explanation_figure import draw
from ...views.explanation_page import page as sentences_page
from ..experiments.findings import row_of, verdict
from ..experiments.plan import OURS, ROWS
from ..experiments.published import published_accuracy
from ..experiments.result import TextResult
from .classifiers import NONE
from .panels import draw_all_conservation, draw_all_curves
from .results_page import METRICS, QUICK, page, sentences_name

NOTES = "notes.md"
"""What a maintainer wrote about the numbers: it is put on the page."""

TRIED = "tried.json"
"""Trainings that led to the choice of the learning rates, if they were kept: what `conserva train` says of each."""

PAGE, CURVES, CONSERVATION, SENTENCES = "README.md", "curves.png", "conservation.png", "sentences.html"


def summary(results: Sequence[TextResult], console: Console | None = None) -> None:
    """Print accuracies and both tables; where a table is wider than the terminal, in several blocks."""
    console = console or Console()
    results = displayed(results)
    marked = console.color_system is None  # such a terminal has no bold either
    if any(one.provenance.get("quick") for one in results):
        console.print(Line(QUICK, style="bold"))
    console.print(Line(protocol_line(results[0].evaluation), style="dim"))
    _print(console, "Test accuracy", Column("", ("mean", "lowest", "highest", "most frequent", "the paper's")),
           [_accuracies(one) for one in results], 3)  # fmt: skip
    rows = [row for row in ROWS if any(row_of(one.evaluation, row.method) for one in results)]
    names = Column("method", tuple(row.title for row in rows))
    above = sum(row.group != "yardstick" for row in rows)
    for metric in METRICS:
        columns = [_means(one, metric, [row.method for row in rows], marked) for one in results]
        _print(console, heading(metric), names, columns, above)
    title = next(row.title for row in ROWS if row.method == OURS)
    console.print()
    console.print(Line(
        f"{'* marks' if marked else 'bold:'} {title} where it beats all other methods of the paper, every paired 95 % "
        "interval leaving out 0", style="dim",
    ))  # fmt: skip
    for metric in METRICS:
        found = [one.title for one in results if _is_best(one, metric)]
        console.print(Line(f"best by {TITLES[metric]} on {len(found)} of {len(results)}: {', '.join(found) or NONE}"))


def write(results: Sequence[TextResult], out: Path) -> list[Path]:
    """Write the page, with what `notes.md` of the folder says, and its figures; return what was written."""
    out.mkdir(parents=True, exist_ok=True)
    notes = out / NOTES
    drawn(out / CURVES, lambda path: draw_all_curves(results, path))
    drawn(out / CONSERVATION, lambda path: draw_all_conservation(results, path))
    shown = [one for one in results if one.sentences]
    write_text(out / SENTENCES, sentences_page([each for one in shown for each in one.sentences]))
    for one in shown:
        drawn(out / sentences_name(one), partial(draw, one.sentences))
    tried = json.loads((out / TRIED).read_text(encoding="utf-8")) if (out / TRIED).exists() else ()
    write_text(out / PAGE, page(results, notes.read_text(encoding="utf-8") if notes.exists() else "", tried))
    return [out / name for name in (PAGE, CURVES, CONSERVATION, SENTENCES, *map(sentences_name, shown))]


def _print(console: Console, title: str, names: Column, columns: Sequence[Column], above: int) -> None:
    console.print()
    console.print(Line(title, style="bold"))
    for block in _blocks([[one] for one in columns], console.width - names.width):
        console.print(_table([names, *block], above))


def _accuracies(one: TextResult) -> Column:
    each = [trained.test_accuracy for trained in one.trained]
    theirs = published_accuracy(one.dataset)
    known = (f"{value:.1%}" for value in (one.accuracy(), min(each), max(each), one.majority))
    return Column(one.title, (*known, NONE if theirs is None else f"{theirs:.1%}"))


def _means(one: TextResult, metric: str, methods: Sequence[str], marked: bool) -> Column:
    found = [row_of(one.evaluation, method) for method in methods]
    cells = [NONE if row is None else _bare(short(getattr(row, metric).mean)) for row in found]
    best = frozenset([methods.index(OURS)]) if _is_best(one, metric) else frozenset()
    if marked:
        cells = [text + ("*" if i in best else " ") for i, text in enumerate(cells)]
    return Column(one.title, tuple(cells), best)


def _is_best(one: TextResult, metric: str) -> bool:
    return row_of(one.evaluation, OURS) is not None and verdict(one.evaluation, metric).best
