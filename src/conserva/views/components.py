"""Parts of pages, as data: what the macros of `templates/macros.html` draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from ..engine.ledger import ENTRIES

if TYPE_CHECKING:
    from ..auditing.result import Audit
    from ..engine.ledger import Ledger


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a text, and what is in grey behind it (`aside`) or on a second line (`below`)."""

    text: str
    aside: str = ""
    below: str = ""
    strong: bool = False
    kind: str = ""
    """The cell's CSS classes."""
    style: str = ""
    """CSS variables of a cell that only draws what other cells say; screen readers skip it."""


@dataclass(frozen=True)
class Row:
    """A row of a table: its name, and the cells behind it."""

    name: str
    cells: Sequence[Cell]
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a note above it, which is its label too."""

    note: str
    titles: Sequence[Cell]
    rows: Sequence[Row]
    apart: Sequence[Row] = ()
    """Rows in grey, in a part of their own."""
    reach: float | None = None
    """A last column draws intervals on an axis from minus this to this."""


@dataclass(frozen=True)
class Figure:
    """A figure and its caption."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class Entry:
    """An entry of a ledger, and its share of the ledger's bar."""

    name: str
    value: float
    share: float


@dataclass(frozen=True)
class Bar:
    """A ledger as a bar of its entries' sizes, with the signed numbers below; without a ledger, its line alone."""

    line: str
    output: float
    entries: Sequence[Entry]


def bar_of(ledger: Ledger[float] | Audit | None, output: float, line: str) -> Bar:
    """Return the bar of a ledger, which a line says in words."""
    if ledger is None:
        return Bar(line, output, ())
    values = {name: float(getattr(ledger, name)) for name in ENTRIES}
    total = sum(map(abs, values.values())) or 1.0
    return Bar(line, output, [Entry(name, value, abs(value) / total) for name, value in values.items()])


def plain(texts: Iterable[str]) -> list[Cell]:
    """Return texts as cells."""
    return [Cell(text) for text in texts]
