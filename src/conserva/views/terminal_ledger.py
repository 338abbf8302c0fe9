"""The ledger in the terminal: a signed waterfall from the inputs to the output, and a bar for tables."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text as Line

from ..engine.ledger import ENTRIES, Ledger
from .colours import GLYPHS, LEDGER_IN_TERMINALS
from .ledger_steps import OUTPUT, LedgerStep, axis_of, ledger_steps
from .terminal_text import has_shades, has_unicode
from .wording import number

WIDEST, NARROWEST = 48, 8
"""The maximum width of the waterfall's bars in character cells, and the width below which there are only numbers."""

_AROUND = 9
"""Cells of a line that are not in the bars: spaces, arrows, the zero line, and two that rounding may need."""

_ASCII = dict(zip(ENTRIES, "#%=:", strict=True))
_PARTS = " ▏▎▍▌▋▊▉█"
Cell = tuple[str, str]
"""A character and its style."""


def ledger_lines(ledger: Ledger[float], output: float, console: Console) -> list[Line]:
    """Return a line for each entry of a ledger and one for the output: name, number, and bar on a common axis."""
    steps = ledger_steps(ledger, output)
    names = [f"= {step.name}" if step.name == OUTPUT else step.name for step in steps]
    values = [number(step.value) for step in steps]
    wide, high = max(map(len, names)), max(map(len, values))
    room = min(WIDEST, console.width - wide - high - _AROUND)
    axis = _Axis(steps, room, console)
    lines = []
    for step, name, value in zip(steps, names, values, strict=True):
        style = "bold" if step.name == OUTPUT else ""
        line = Line(f"{name:<{wide}}  {value:>{high}}", style=style, no_wrap=True)
        lines.append(line if room < NARROWEST else Line.assemble(line, "  ", axis.bar(step), no_wrap=True))
    return lines


def ledger_bar(ledger: Ledger[float], reach: tuple[float, float], cells: int, console: Console) -> Line:
    """Return a ledger as one bar: positive entries to the right of the zero line, negative ones to the left.

    `reach` has the lowest and the highest level of the axis, which the bars of a table share.
    """
    low, high = reach
    axis = _Axis([LedgerStep("", 0.0, low, high)], cells, console)
    bars, ends = [], [0.0, 0.0]
    for name in ENTRIES:
        value = float(getattr(ledger, name))
        side = int(value < 0)
        bars.append(LedgerStep(name, value, ends[side], ends[side] + value))
        ends[side] += value
    return axis.stacked(bars)


def reach_of(ledgers: Iterable[Ledger[float]]) -> tuple[float, float]:
    """Return the lowest and the highest level of the bars of some ledgers."""
    entries = [[float(getattr(ledger, name)) for name in ENTRIES] for ledger in ledgers]
    low = min((sum(value for value in values if value < 0) for values in entries), default=0.0)
    high = max((sum(value for value in values if value > 0) for values in entries), default=0.0)
    return low, high


def keys(console: Console) -> Line:
    """Return the legend of `ledger_bar`."""
    line = Line().append("ledger:", style="dim")
    for name in ENTRIES:
        line.append(f" {_glyph(name, console)}", style=_style(name, console)).append(f" {name}", style="dim")
    return line.append(f"; entries below 0 are left of {'│' if has_unicode(console) else '|'}", style="dim")


class _Axis:
    """An axis of character cells with a column for the zero line, and a column at each end for arrows."""

    def __init__(self, steps: Iterable[LedgerStep], room: int, console: Console) -> None:
        low, high = axis_of(list(steps))
        self._size = max(-low, high)  # levels are divided by it first, so that no number is too large or too small
        self._cells = max(room, 1) / (high / self._size - low / self._size)
        self._below = math.ceil(-self._cell(low) - 1e-6)
        self._above = math.ceil(self._cell(high) - 1e-6)
        self._console = console
        self._zero = self._below + 1

    def _cell(self, level: float) -> float:
        """Return the position of a level in cells from the zero line."""
        return level / self._size * self._cells

    def bar(self, step: LedgerStep) -> Line:
        """Return the bar of a step, with an arrow at its end."""
        row = self._empty()
        filled = self._fill(row, step)
        if filled:
            column = max(filled) + 1 if step.value > 0 else min(filled) - 1
            column += (column == self._zero) * (1 if step.value > 0 else -1)
            arrows = "→←" if has_unicode(self._console) else "><"
            row[column] = (arrows[step.value < 0], _style(step.name, self._console))
        return _line(row)

    def stacked(self, steps: Iterable[LedgerStep]) -> Line:
        """Return several bars in one line; each covers whole cells, since a cell has one colour."""
        row = self._empty()
        for step in steps:
            low, high = sorted(round(self._cell(level)) for level in (step.start, step.end))
            for cell in range(max(low, -self._below), min(high, self._above)):
                row[self._column(cell)] = (_glyph(step.name, self._console), _style(step.name, self._console))
        return _line(row[1:-1])

    def _empty(self) -> list[Cell]:
        row = [(" ", "")] * (self._below + self._above + 3)
        row[self._zero] = ("│" if has_unicode(self._console) else "|", "dim")
        return row

    def _column(self, cell: int) -> int:
        return cell + self._zero + (cell >= 0)

    def _fill(self, row: list[Cell], step: LedgerStep) -> list[int]:
        """Draw a bar and return its columns; a bar of less than an eighth of a cell has none."""
        low, high = sorted((self._cell(step.start), self._cell(step.end)))
        first, last = max(math.floor(low), -self._below), min(math.ceil(high), self._above)
        whole = not (has_shades(self._console) and has_unicode(self._console))
        style, filled = _style(step.name, self._console), []
        for cell in range(first, last):
            left, right = (round(8 * (min(max(level, cell), cell + 1) - cell)) for level in (low, high))
            if right <= left or (whole and right - left < 4 and high - low > 1):
                continue
            column = self._column(cell)
            filled.append(column)
            if whole:
                row[column] = (_glyph(step.name, self._console), style)
            elif right == 8 and left > 2:  # of the blocks that fill a cell from the right, fonts have only the half
                row[column] = ("▐" if left < 7 else "▕", style)
            else:
                row[column] = (_PARTS[right - left] if right < 8 else "█", style)
        if filled and low < 0 < high:
            row[self._zero] = (row[self._zero][0], style)
        return filled


def _glyph(name: str, console: Console) -> str:
    if not has_unicode(console):
        return _ASCII.get(name, "#")
    return "█" if has_shades(console) else GLYPHS.get(name, "█")


def _style(name: str, console: Console) -> str:
    return LEDGER_IN_TERMINALS.get(name, "") if has_shades(console) else ""


def _line(cells: Iterable[Cell]) -> Line:
    line = Line(no_wrap=True)
    for character, style in cells:
        line.append(character, style=style)
    line.rstrip()
    return line
