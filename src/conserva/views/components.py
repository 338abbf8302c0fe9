"""Data classes of the page parts that the macros in `templates/macros.html` render."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from .colours import LEDGER_ON_PAGES
from .ledger_steps import axis_of, ledger_steps
from .wording import number

if TYPE_CHECKING:
    from ..engine.ledger import Ledger

LEAST_VISIBLE = 1e-3
"""Bars that are shorter than this share of their axis are not drawn: those of rounding errors."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a text, with grey text on a second line (`below`)."""

    text: str
    below: str = ""
    strong: bool = False
    kind: str = ""
    """The cell's CSS classes."""
    style: str = ""
    """CSS variables of a cell that draws the numbers of other cells; screen readers skip it."""


@dataclass(frozen=True)
class Row:
    """A row of a table: its header and its cells."""

    name: str
    cells: Sequence[Cell]
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a note above it, which is also its label for screen readers."""

    note: str
    titles: Sequence[Cell]
    rows: Sequence[Row]
    separate_rows: Sequence[Row] = ()
    """Rows in grey, in a separate section below."""
    reach: float | None = None
    """If given, the last column draws intervals on an axis from -reach to reach."""


@dataclass(frozen=True)
class Figure:
    """A figure and its caption."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class Bar:
    """A signed value as a bar on an axis, in shares of the axis' width."""

    name: str
    value: float
    left: float
    width: float
    end: float
    """Where the bar ends: at its left if the value is negative."""
    text: str
    """The value as it is shown."""
    kind: str = ""
    """The CSS classes of the row."""
    colour: str = ""
    """The CSS colour of the bar, unless its class has one."""


@dataclass(frozen=True)
class Bars:
    """Bars on one axis."""

    bars: Sequence[Bar]
    zero: float
    """Where the axis has its zero, as a share of its width."""


@dataclass(frozen=True)
class LedgerBars:
    """A ledger as a waterfall; without entries, only the text `line` is shown."""

    line: str
    bars: Bars | None
    note: str
    """What a large gap means; empty if the gap is small."""


def bar_of(
    ledger: Ledger[float] | None,
    output: float,
    line: str,
    note: str = "",
    axis: tuple[float, float] | None = None,
) -> LedgerBars:
    """Return the waterfall of a ledger; `line` is its text alternative, `axis` the lowest and highest level."""
    if ledger is None:
        return LedgerBars(line, None, note)
    steps = ledger_steps(ledger, output)
    low, high = axis_of(steps) if axis is None else axis
    width = high - low
    return LedgerBars(
        line,
        Bars(
            [
                Bar(
                    step.name,
                    step.value,
                    left=(min(step.start, step.end) - low) / width,
                    width=_visible(abs(step.end - step.start) / width),
                    end=(step.end - low) / width,
                    text=number(step.value),
                    kind=_kind((step.end - step.start) / width, "up", "down"),
                    colour=LEDGER_ON_PAGES.get(step.name, ""),
                )
                for step in steps
            ],
            -low / width,
        ),
        note,
    )


def signed_bars(named: Iterable[tuple[str, float]]) -> Bars:
    """Return a bar for each name and score, from a zero that is in the middle if there are scores of both signs."""
    named = list(named)
    low = min((score for _, score in named), default=0.0)
    high = max((score for _, score in named), default=0.0)
    reach = max(abs(low), abs(high)) or 1.0
    zero, width = (0.5, 2 * reach) if low < 0 < high else (1.0, reach) if low < 0 else (0.0, reach)
    return Bars(
        [
            Bar(
                name,
                score,
                left=zero + min(score, 0.0) / width,
                width=_visible(abs(score) / width),
                end=zero + score / width,
                text=number(score),
                kind=_kind(score / width, "for", "against"),
            )
            for name, score in named
        ],
        zero,
    )


def _visible(width: float) -> float:
    return 0.0 if width < LEAST_VISIBLE else width


def _kind(share: float, above: str, below: str) -> str:
    """Return the class of a bar, which gives it a visible width; empty for rounding errors."""
    return "" if abs(share) < LEAST_VISIBLE else above if share > 0 else below


def share_bars(named: Iterable[tuple[str, float]]) -> Bars:
    """Return a bar for each name and share of the whole."""
    return Bars([Bar(name, share, 0.0, share, share, f"{share:.1%}") for name, share in named], 0.0)


def plain(texts: Iterable[str]) -> list[Cell]:
    """Return unstyled cells with these texts."""
    return [Cell(text) for text in texts]
