"""Evaluations in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text as Line

from .._util.text import displayed
from ..evaluation.result import Evaluation, MethodResult
from .evaluation_wording import (
    best,
    by_auac,
    guide,
    heading,
    headline,
    interval,
    left_out,
    protocol_line,
    short,
    verdict,
    without_zero,
)

GUTTER = 2


@dataclass(frozen=True)
class Column:
    """A column of a terminal table; `best` are the indices of cells in bold."""

    title: str
    cells: tuple[str, ...]
    best: frozenset[int] = frozenset()

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.title, *self.cells))


def show(evaluation: Evaluation, console: Console | None = None) -> None:
    """Print an evaluation as a table, split into several if it is wider than the terminal."""
    console = console or Console()
    evaluation = displayed(evaluation)
    console.print(Line(headline(evaluation), style="bold"))
    console.print(Line(verdict(evaluation)))
    console.print(Line(guide(evaluation), style="dim"))
    console.print(Line(protocol_line(evaluation), style="dim"))
    rows = by_auac(result for result in evaluation.methods if not result.reference)
    references = [result for result in evaluation.methods if result.reference]
    marked = console.color_system is None  # a terminal without colours has no bold either
    names = Column("method", tuple(result.method for result in (*rows, *references)))
    groups = _groups(evaluation, [*rows, *references], marked)
    for block in _blocks(groups, console.width - names.width):
        console.print()
        console.print(_table([names, *block], len(rows)))
    console.print()
    console.print(Line(_legend(marked, bool(references)), style="dim"))
    if evaluation.without_value:
        console.print(Line(left_out(evaluation), style="dim"))
    for method, reason in evaluation.refused.items():
        console.print(Line.assemble((method, "bold"), f" does not apply: {reason}"))


def _groups(evaluation: Evaluation, rows: Sequence[MethodResult], marked: bool) -> list[list[Column]]:
    """Return groups of columns; the columns of a group are not split."""
    groups = []
    for metric in evaluation.metrics:
        winners = best(evaluation, metric)
        first = frozenset(i for i, result in enumerate(rows) if result.method in winners)
        cells = [without_zero(interval(getattr(result, metric))) for result in rows]
        if marked:
            cells = [text + ("*" if i in first else " ") for i, text in enumerate(cells)]
        groups.append([Column(heading(metric), tuple(cells), first)])
    conservation = [result.conservation for result in rows]
    groups.append(
        [
            Column("corr.", tuple(without_zero(short(sums.correlation)) for sums in conservation)),
            Column("slope", tuple(without_zero(short(sums.slope)) for sums in conservation)),
            Column("dist.", tuple(without_zero(short(sums.distance)) for sums in conservation)),
        ]
    )
    return groups


def _blocks(groups: Sequence[Sequence[Column]], room: int) -> Iterator[list[Column]]:
    """Yield blocks of columns that fit `room`; groups are not split."""
    block: list[Column] = []
    for group in groups:
        if block and sum(column.width + GUTTER for column in (*block, *group)) > room:
            yield block
            block = []
        block += group
    yield block


def _table(columns: Sequence[Column], rows: int) -> Table:
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, padding=(0, GUTTER - 1, 0, 0))
    table.add_column(Line(columns[0].title), overflow="fold")  # names may wrap, numbers must not
    for column in columns[1:]:
        table.add_column(Line(column.title), justify="right", no_wrap=True, min_width=column.width)
    for i, name in enumerate(columns[0].cells):
        cells = [Line(column.cells[i], style="bold" if i in column.best else "") for column in columns[1:]]
        table.add_row(Line(name), *cells, style="dim" if i >= rows else None, end_section=i == rows - 1)
    return table


def _legend(marked: bool, references: bool) -> str:
    lines = [
        f"mean [95 % interval]; {'* marks' if marked else 'bold:'} the best method of a column, except random",
        "methods are compared sample by sample: a difference can be sure although intervals overlap",
        "corr., slope: of the sum of the scores and the output; dist.: the mean distance from the output",
    ]
    return "\n".join(lines + ["below the line: yardsticks, not explanation methods"] * references)
