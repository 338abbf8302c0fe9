"""Evaluations in the terminal, and the words and numbers that their other views use alike."""

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
"""How the paper writes the metrics' names; the others are words."""

SETTINGS = {"target": "target class", "mask": "mask", "steps": "steps"}
"""What of a protocol is said wherever numbers are shown."""

GUTTER = 2


def short(value: float | None, beside: Sequence[float] = ()) -> str:
    """Return a number with three digits, or with as many behind the point as the largest of those beside it."""
    if value is None:
        return "-"
    if not beside and 0 < abs(value) < 0.0005:
        return f"{value:.0e}"
    largest = max(abs(one) for one in (value, *beside))
    if largest >= 1e6:
        return f"{value:.2e}"
    decimals = next((3 - i for i, bound in enumerate((0.9995, 9.995, 99.95)) if largest < bound), 0)
    return f"{value:.{decimals}f}"  # -0.000 keeps its sign: which side of 0 a limit lies on matters


def interval(one: Interval) -> str:
    """Return a mean with its interval, all to the same place."""
    mean, low, high = (short(value, (one.mean, one.low, one.high)) for value in (one.mean, one.low, one.high))
    return f"{mean} [{low}, {high}]"


def heading(metric: str) -> str:
    """Return a metric's name with an arrow to where it is better."""
    return f"{TITLES.get(metric, metric)} {'↑' if HIGHER_IS_BETTER[metric] else '↓'}"


def headline(evaluation: Evaluation) -> str:
    """Say what was evaluated: model, data, samples, and how often the model is right."""
    samples = "1 sample" if evaluation.samples == 1 else f"{evaluation.samples} samples"
    right = "" if evaluation.accuracy is None else f" · accuracy {evaluation.accuracy:.1%}"
    return f"{evaluation.model} on {evaluation.data} · {samples}{right}"


def protocol_line(evaluation: Evaluation) -> str:
    """Say in one line how it was evaluated."""
    protocol = evaluation.protocol
    parts = [f"protocol {said(protocol['name'])}"] if "name" in protocol else ["protocol"]
    parts += [f"{word} {setting(key, protocol[key])}" for key, word in SETTINGS.items() if key in protocol]
    if is_of_graphs(evaluation):
        parts.append("the virtual node stays")
    elif "special" in protocol:
        parts.append("special tokens go too" if protocol["special"] else "special tokens stay")
    return " · ".join(parts)


def is_of_graphs(evaluation: Evaluation) -> bool:
    """Return whether nodes were taken away: the one feature that is not the input's own, the virtual node, never is."""
    return evaluation.protocol.get("mask") in NODE_MASKS


def setting(key: str, value: Any) -> str:
    """Return in words what a setting of the protocol is."""
    return "one for each feature" if key == "steps" and value is None else said(value)


def said(value: Any) -> str:
    """Return a setting's value in words."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, Mapping | list | tuple):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return printable(str(value))


def is_random(method: str) -> bool:
    """Return whether a row is the random order, with whatever seed."""
    return method.partition(":")[0] == "random"


def ranked(evaluation: Evaluation, metric: str) -> list[MethodResult]:
    """Return the methods from best to worst; yardsticks and random orders are not in the running."""
    running = [one for one in evaluation.methods if not one.reference and not is_random(one.method)]
    return sorted(running, key=lambda one: getattr(one, metric).mean, reverse=HIGHER_IS_BETTER[metric])


def best(evaluation: Evaluation, metric: str) -> set[str]:
    """Return the best method, or those that share its mean."""
    order = ranked(evaluation, metric)
    return {one.method for one in order if getattr(one, metric).mean == getattr(order[0], metric).mean}


@dataclass(frozen=True)
class Column:
    """What stands below one heading, a line for each method."""

    title: str
    cells: tuple[str, ...]
    best: frozenset[int] = frozenset()

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.title, *self.cells))


def show(evaluation: Evaluation, console: Console | None = None) -> None:
    """Print the table; where it is wider than the terminal, in several blocks."""
    console = console or Console()
    evaluation = displayed(evaluation)
    console.print(Line(headline(evaluation), style="bold"))
    console.print(Line(protocol_line(evaluation), style="dim"))
    rows = [one for one in evaluation.methods if not one.reference]
    references = [one for one in evaluation.methods if one.reference]
    marked = console.color_system is None  # such a terminal has no bold either
    names = Column("method", tuple(one.method for one in (*rows, *references)))
    groups = _groups(evaluation, [*rows, *references], marked)
    for block in _blocks(groups, console.width - names.width):
        console.print()
        console.print(_table([names, *block], len(rows)))
    console.print()
    console.print(Line(_legend(marked, bool(references)), style="dim"))
    for method, reason in evaluation.refused.items():
        console.print(Line.assemble((method, "bold"), f" does not apply: {reason}"))


def _groups(evaluation: Evaluation, rows: Sequence[MethodResult], marked: bool) -> list[list[Column]]:
    """Return the columns; those of a group stay side by side."""
    groups = []
    for metric in METRICS:
        winners = best(evaluation, metric)
        first = frozenset(i for i, one in enumerate(rows) if one.method in winners)
        cells = [_bare(interval(getattr(one, metric))) for one in rows]
        if marked:
            cells = [text + ("*" if i in first else " ") for i, text in enumerate(cells)]
        groups.append([Column(heading(metric), tuple(cells), first)])
    books = [one.conservation for one in rows]
    groups.append(
        [
            Column("corr.", tuple(_bare(short(one.correlation)) for one in books)),
            Column("slope", tuple(_bare(short(one.slope)) for one in books)),
            Column("gap", tuple(_bare(short(one.gap)) for one in books)),
        ]
    )
    return groups


def _blocks(groups: Sequence[Sequence[Column]], room: int) -> Iterator[list[Column]]:
    """Put as many groups beside each other as there is room for."""
    block: list[Column] = []
    for group in groups:
        if block and sum(one.width + GUTTER for one in (*block, *group)) > room:
            yield block
            block = []
        block += group
    yield block


def _table(columns: Sequence[Column], rows: int) -> Table:
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, padding=(0, GUTTER - 1, 0, 0))
    table.add_column(Line(columns[0].title), overflow="fold")  # the name may give way, a number never
    for one in columns[1:]:
        table.add_column(Line(one.title), justify="right", no_wrap=True, min_width=one.width)
    for i, name in enumerate(columns[0].cells):
        cells = [Line(one.cells[i], style="bold" if i in one.best else "") for one in columns[1:]]
        table.add_row(Line(name), *cells, style="dim" if i >= rows else None, end_section=i == rows - 1)
    return table


def _legend(marked: bool, references: bool) -> str:
    lines = [
        f"mean [95 % interval]; {'* marks' if marked else 'bold:'} the best of a column, random apart",
        "corr., slope, gap: sum of scores against output; 1, 1 and 0 where they agree",
    ]
    return "\n".join(lines + ["below the rule: yardsticks, no methods of explanation"] * references)


def _bare(text: str) -> str:
    """Leave out the nought before a point, as the paper does: a column is narrower without it."""
    return re.sub(r"\b0\.", ".", text)
