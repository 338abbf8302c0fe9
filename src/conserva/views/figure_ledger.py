"""The ledger in matplotlib figures: a signed waterfall from the inputs to the output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .colours import LEDGER
from .figure_text import Letters
from .ledger_steps import OUTPUT, LedgerStep
from .vector_drawing import INK, NOTE
from .wording import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW = 1.6
"""The height of a row relative to the size of the letters."""

_BOLD = 1.15
"""Bold labels are wider than they are measured by at most this factor."""

_BAR, _POINT = 0.66, 0.5
"""The height of a bar and the length of its point, relative to the height of a row."""


def waterfall_height(steps: Sequence[LedgerStep], letters: Letters) -> float:
    """Return the height of a waterfall in inches."""
    return len(steps) * ROW * letters.em


def label_widths(ledgers: Iterable[Sequence[LedgerStep]], letters: Letters) -> tuple[float, float]:
    """Return the widths of the columns of names and of numbers of some waterfalls."""
    steps = [step for ledger in ledgers for step in ledger]
    names = max((letters.width(_name(step)) for step in steps), default=0.0)
    numbers = max((letters.width(number(step.value)) for step in steps), default=0.0)
    return _BOLD * names, _BOLD * numbers


def _name(step: LedgerStep) -> str:
    return f"= {step.name}" if step.name == OUTPUT else step.name


def draw_waterfall(
    axes: Axes,
    steps: Sequence[LedgerStep],
    reach: tuple[float, float],
    box: tuple[float, float, float],
    labels: tuple[float, float],
    letters: Letters,
) -> None:
    """Draw a row for each step: its name, its number, and a bar that points from its start to its end.

    Parameters
    ----------
    reach
        The lowest and the highest level of the axis.
    box
        Left, top and width in inches.
    labels
        The widths of the columns of names and numbers, from `label_widths`.
    axes, steps, letters
        The axes, whose unit is an inch, the steps, and the font of the labels.
    """
    from matplotlib.patches import Polygon

    left, top, width = box
    high = ROW * letters.em
    edge = left + labels[0] + letters.em + labels[1]
    start = edge + letters.em
    low, span = reach[0], (reach[1] - reach[0]) or 1.0
    inner = max(0.0, left + width - start)

    def across(level: float) -> float:
        return start + inner * (level - low) / span

    bottom = top + high * len(steps)
    axes.plot([across(0.0)] * 2, [top, bottom], color=NOTE, lw=0.7, zorder=3)
    for i, step in enumerate(steps):
        middle = top + (i + 0.5) * high
        weight = "bold" if step.name == OUTPUT else "normal"
        label: dict[str, Any] = {"fontsize": letters.size, "va": "center_baseline", "color": INK, "weight": weight}
        axes.text(left, middle, _name(step), **label)
        axes.text(edge, middle, number(step.value), ha="right", **label)
        begin, end = across(step.start), across(step.end)
        half, point = _BAR * high / 2, min(abs(end - begin), _POINT * high)
        neck = end - point if end > begin else end + point
        corners = [(begin, -half), (neck, -half), (end, 0.0), (neck, half), (begin, half)]
        colour = LEDGER.get(step.name, INK)
        axes.add_patch(Polygon([(x, middle + y) for x, y in corners], facecolor=colour, edgecolor=NOTE, lw=0.3))
        if i + 1 < len(steps):  # where the next bar begins, or the output ends
            axes.plot([end, end], [middle, middle + high], color=NOTE, lw=0.5, ls=(0, (1, 1)), zorder=0)
