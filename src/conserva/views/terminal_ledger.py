"""A ledger as a waterfall in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text as Line

from ..engine.ledger import Ledger
from .colours import LEDGER
from .ledger_steps import OUTPUT, LedgerStep, axis_of, ledger_steps
from .wording import number

LONGEST = 44
"""The maximum width of the waterfall, in columns."""

STYLES = {"inputs": "", "positions": LEDGER["positions"], "biases": "dim", "gap": LEDGER["gap"], OUTPUT: "bold"}
"""Step -> a style that is readable on light and on dark backgrounds."""


def ledger_lines(ledger: Ledger[float], output: float, console: Console) -> list[Line]:
    """Return a line for each entry and for the output: its name, its signed value, and where it begins and ends.

    Arrowheads show the direction of a step, so that it can be seen without colours.
    """
    steps = ledger_steps(ledger, output)
    names = ["= output" if step.name == OUTPUT else step.name for step in steps]
    values = [number(step.value) for step in steps]
    margin, wide = max(map(len, names)), max(map(len, values))
    room = min(LONGEST, console.width - margin - wide - 4)
    lines = []
    for step, name, value in zip(steps, names, values, strict=True):
        line = Line(f"{name:<{margin}}  {value:>{wide}}", style="bold" if step.name == OUTPUT else "", no_wrap=True)
        if room >= 8:
            line.append("  ").append(_drawn(step, axis_of(steps), room), style=STYLES[step.name])
        lines.append(line)
    return lines


def _drawn(step: LedgerStep, axis: tuple[float, float], room: int) -> str:
    """Return a step on the axis, with a line at 0."""
    low, high = axis

    def column(level: float) -> int:
        return min(room - 1, int(room * (level - low) / (high - low)))

    cells = [" "] * room
    cells[column(0.0)] = "│"
    first, last = sorted((column(step.start), column(step.end)))
    if step.value > 0:
        cells[first : last + 1] = [*"█" * (last - first), "▶"]
    elif step.value < 0:
        cells[first : last + 1] = ["◀", *"█" * (last - first)]
    return "".join(cells).rstrip()
