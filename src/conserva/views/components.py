"""Data classes of the page parts that the macros in `templates/macros.html` render."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from ..engine.ledger import ENTRIES

if TYPE_CHECKING:
    from ..engine.ledger import Ledger


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a text, with grey text after it (`aside`) or on a second line (`below`)."""

    text: str
    aside: str = ""
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
class Entry:
    """An entry of a ledger, and its share of the bar's width."""

    name: str
    value: float
    share: float


@dataclass(frozen=True)
class Bar:
    """A ledger as a bar of absolute values with a legend; without entries, only the text `line` is shown."""

    line: str
    output: float
    entries: Sequence[Entry]


def bar_of(ledger: Ledger[float] | None, output: float, line: str) -> Bar:
    """Return the bar of a ledger; `line` is its text alternative."""
    if ledger is None:
        return Bar(line, output, ())
    values = {name: float(getattr(ledger, name)) for name in ENTRIES}
    total = sum(map(abs, values.values())) or 1.0
    return Bar(line, output, [Entry(name, value, abs(value) / total) for name, value in values.items()])


def plain(texts: Iterable[str]) -> list[Cell]:
    """Return unstyled cells with these texts."""
    return [Cell(text) for text in texts]
