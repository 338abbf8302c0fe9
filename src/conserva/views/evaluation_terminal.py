"""Evaluations in the terminal, and the texts and number formats shared with their other views."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text as Line

from .._util.text import displayed, printable
from ..evaluation.result import HIGHER_IS_BETTER, METRICS, Evaluation, Interval, MethodResult
from ..tasks.graph import MASKS as NODE_MASKS

TITLES = {"auac": "AUAC", "au_mse": "AU-MSE", "aupc": "AUPC"}
"""Metrics with an acronym; the others are shown by their names."""

SETTINGS = {"target": "target class", "mask": "mask", "steps": "steps"}
"""Settings of the protocol that are shown next to the results -> their labels."""

GUTTER = 2


def short(value: float | None, beside: Sequence[float] = ()) -> str:
    """Return a number with three digits, or with as many decimals as the largest of `beside` has."""
    if value is None:
        return "-"
    if not beside and 0 < abs(value) < 0.0005:
        return f"{value:.0e}"
    largest = max(abs(number) for number in (value, *beside))
    if largest >= 1e6:
        return f"{value:.2e}"
    decimals = next((3 - i for i, bound in enumerate((0.9995, 9.995, 99.95)) if largest < bound), 0)
    return f"{value:.{decimals}f}"  # -0.000 keeps its sign: which side of 0 a limit lies on matters


def interval(estimate: Interval) -> str:
    """Return a mean with its interval, with the same number of decimals."""
    mean, low, high = (
        short(value, (estimate.mean, estimate.low, estimate.high))
        for value in (estimate.mean, estimate.low, estimate.high)
    )
    return f"{mean} [{low}, {high}]"


def heading(metric: str) -> str:
    """Return a metric's name with an arrow: up if higher is better, else down."""
    return f"{TITLES.get(metric, metric)} {'↑' if HIGHER_IS_BETTER[metric] else '↓'}"


def headline(evaluation: Evaluation) -> str:
    """Return the title: model, data, number of samples, and the model's accuracy."""
    samples = "1 sample" if evaluation.samples == 1 else f"{evaluation.samples} samples"
    right = "" if evaluation.accuracy is None else f" · accuracy {evaluation.accuracy:.1%}"
    return f"{evaluation.model} on {evaluation.data} · {samples}{right}"


def protocol_line(evaluation: Evaluation) -> str:
    """Return the evaluation protocol in one line."""
    protocol = evaluation.protocol
    parts = [f"protocol {value_text(protocol['name'])}"] if "name" in protocol else ["protocol"]
    parts += [f"{word} {setting(key, protocol[key])}" for key, word in SETTINGS.items() if key in protocol]
    if is_of_graphs(evaluation):
        parts.append("virtual node kept")
    elif "special" in protocol:
        parts.append("special tokens removed too" if protocol["special"] else "special tokens kept")
    return " · ".join(parts)


def is_of_graphs(evaluation: Evaluation) -> bool:
    """Return whether features are nodes of graphs; the virtual node is then always kept."""
    return evaluation.protocol.get("mask") in NODE_MASKS


def setting(key: str, value: Any) -> str:
    """Return a setting of the protocol as text."""
    return "one for each feature" if key == "steps" and value is None else value_text(value)


def value_text(value: Any) -> str:
    """Return a setting's value as text."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, Mapping | list | tuple):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return printable(str(value))


def is_random(method: str) -> bool:
    """Return whether a method is the random order, with any seed."""
    return method.partition(":")[0] == "random"


def ranked(evaluation: Evaluation, metric: str) -> list[MethodResult]:
    """Return the methods from best to worst, without yardsticks and random orders."""
    candidates = [result for result in evaluation.methods if not result.reference and not is_random(result.method)]
    return sorted(candidates, key=lambda result: getattr(result, metric).mean, reverse=HIGHER_IS_BETTER[metric])


def best(evaluation: Evaluation, metric: str) -> set[str]:
    """Return the best method, or all methods with the same best mean."""
    order = ranked(evaluation, metric)
    return {result.method for result in order if getattr(result, metric).mean == getattr(order[0], metric).mean}


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
    console.print(Line(protocol_line(evaluation), style="dim"))
    rows = [result for result in evaluation.methods if not result.reference]
    references = [result for result in evaluation.methods if result.reference]
    marked = console.color_system is None  # a terminal without colours has no bold either
    names = Column("method", tuple(result.method for result in (*rows, *references)))
    groups = _groups(evaluation, [*rows, *references], marked)
    for block in _blocks(groups, console.width - names.width):
        console.print()
        console.print(_table([names, *block], len(rows)))
    console.print()
    console.print(Line(_legend(marked, bool(references)), style="dim"))
    for method, reason in evaluation.refused.items():
        console.print(Line.assemble((method, "bold"), f" does not apply: {reason}"))


def _groups(evaluation: Evaluation, rows: Sequence[MethodResult], marked: bool) -> list[list[Column]]:
    """Return groups of columns; the columns of a group are not split."""
    groups = []
    for metric in METRICS:
        winners = best(evaluation, metric)
        first = frozenset(i for i, result in enumerate(rows) if result.method in winners)
        cells = [_bare(interval(getattr(result, metric))) for result in rows]
        if marked:
            cells = [text + ("*" if i in first else " ") for i, text in enumerate(cells)]
        groups.append([Column(heading(metric), tuple(cells), first)])
    conservation = [result.conservation for result in rows]
    groups.append(
        [
            Column("corr.", tuple(_bare(short(sums.correlation)) for sums in conservation)),
            Column("slope", tuple(_bare(short(sums.slope)) for sums in conservation)),
            Column("gap", tuple(_bare(short(sums.gap)) for sums in conservation)),
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
        "corr., slope, gap: sum of scores compared with the output; 1, 1 and 0 if they are equal",
    ]
    return "\n".join(lines + ["below the line: yardsticks, not explanation methods"] * references)


def _bare(text: str) -> str:
    """Return a number without the leading zero (".917"), as in the paper, to save width."""
    return re.sub(r"\b0\.", ".", text)
