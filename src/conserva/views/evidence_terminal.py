"""Agreement with evidence in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text as Line

from .._util.text import displayed
from ..evaluation.evidence import Evidence
from .evaluation_terminal import Column, _blocks, _table
from .evaluation_wording import best, interval, without_zero

TITLES = {
    "top1": "top-1 ↑",
    "pointing_game": "pointing game ↑",
    "iou": "IOU ↑",
    "average_precision": "average precision ↑",
}
"""Measure -> its heading."""

GUIDE = (
    "Top-1: the highest score is in the evidence. Pointing game: the same, but equal highest scores count by their "
    "share. IOU: overlap of the evidence with as many of the highest scores. Average precision: of all scores, in "
    "order. Surely: the 95 % interval of the difference from every other method excludes 0."
)


def show(evidence: Evidence, console: Console | None = None) -> None:
    """Print the agreement as a table, split into several if it is wider than the terminal."""
    console = console or Console()
    evidence = displayed(evidence)
    left_out = f" · {evidence.without_evidence} without evidence left out" if evidence.without_evidence else ""
    console.print(
        Line(f"{evidence.samples} samples · evidence {evidence.share:.1%} of features{left_out}", style="bold")
    )
    console.print(Line(verdict(evidence)))
    console.print(Line(GUIDE, style="dim"))
    rows = sorted((row for row in evidence.methods if not row.reference), key=lambda row: -row.average_precision.mean)
    references = [row for row in evidence.methods if row.reference]
    marked = console.color_system is None  # a terminal without colours has no bold either
    groups = []
    for metric, title in TITLES.items():
        winners = best(evidence, metric)
        first = frozenset(i for i, row in enumerate([*rows, *references]) if row.method in winners)
        cells = [without_zero(interval(getattr(row, metric))) for row in (*rows, *references)]
        if marked:
            cells = [text + ("*" if i in first else " ") for i, text in enumerate(cells)]
        groups.append([Column(title, tuple(cells), first)])
    names = Column("method", tuple(row.method for row in (*rows, *references)))
    for block in _blocks(groups, console.width - names.width):
        console.print()
        console.print(_table([names, *block], len(rows)))
    console.print()
    end = f"mean [95 % interval]; {'* marks' if marked else 'bold:'} the best method of a column, except random"
    console.print(Line(end, style="dim"))


def verdict(evidence: Evidence) -> str:
    """Return one sentence: which method is surely the best on which measure."""
    surely: dict[str, list[str]] = {}
    for metric, title in TITLES.items():
        row = evidence.surely_best(metric)
        if row is not None:
            surely.setdefault(f"“{row.method}”", []).append(title.removesuffix(" ↑"))
    if not surely:
        return "On these samples no method is surely the best on any measure."
    parts = [f"{name} on {', '.join(titles)}" for name, titles in surely.items()]
    return f"Surely the best: {'; '.join(parts)}."
