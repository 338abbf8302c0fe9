"""The ledger in vector drawings: a signed waterfall from the inputs to the output."""

from __future__ import annotations

from collections.abc import Iterator

from ..engine.ledger import Ledger
from .colours import LEDGER
from .ledger_steps import OUTPUT, axis_of, ledger_steps
from .vector_drawing import INK, NOTE, Shape, TextLine, rectangle
from .wording import number

ROW, HIGH, POINT = 15.0, 10.0, 5.0
"""The height of a row, the height of a bar, and the length of its point."""

_NUMBERS, _BARS, _LETTERS = 116.0, 128.0, 9.5  # where the columns of numbers and of bars are; the size of letters


def ledger_parts(ledger: Ledger[float], output: float, x: float, y: float, width: float) -> Iterator[Shape | TextLine]:
    """Yield a row for each entry and the output: its name, its number, and a bar that points to where it ends."""
    steps = ledger_steps(ledger, output)
    low, high = axis_of(steps)
    zoom = (width - _BARS) / (high - low)
    left = x + _BARS - zoom * low
    yield Shape(rectangle(left, y, 0.7, ROW * len(steps)), NOTE)
    for i, step in enumerate(steps):
        top, last = y + i * ROW, step.name == OUTPUT
        begin, end = left + zoom * step.start, left + zoom * step.end
        name = f"= {step.name}" if last else step.name
        yield TextLine(x, top + 11, name, _LETTERS, INK if last else NOTE, bold=last)
        yield TextLine(x + _NUMBERS, top + 11, number(step.value), _LETTERS, INK if last else NOTE, "end", bold=last)
        yield Shape(_arrow(begin, end, top + (ROW - HIGH) / 2), LEDGER.get(step.name, INK))
        if not last:
            yield Shape(rectangle(end, top + ROW / 2, 0.5, ROW), NOTE)


def _arrow(begin: float, end: float, top: float) -> str:
    """Return the path of a bar from `begin` to `end`, with its point there."""
    point = min(abs(end - begin), POINT)
    neck = end - point if end > begin else end + point
    corners = [(neck, top), (end, top + HIGH / 2), (neck, top + HIGH), (begin, top + HIGH)]
    return f"M{begin:.2f} {top:.2f}" + "".join(f"L{across:.2f} {down:.2f}" for across, down in corners) + "Z"
