"""Explanations in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text as Line

from .._util.text import displayed
from ..engine.ledger import ENTRIES
from ..results.explanation import Explanation
from ..results.explanations import Comparison
from .colours import scale_of
from .picture_nodes import node_noun, virtual_node
from .terminal_ledger import keys, ledger_bar, ledger_lines, reach_of
from .terminal_pictures import picture, scored, summary
from .terminal_text import UNKNOWN_NOTE, has_shades, has_unicode, written_line
from .wording import (
    caption,
    classes_line,
    colours_line,
    hidden_line,
    ledger_line,
    ledger_note,
    ledger_notes,
    number,
    outcome,
    scales_note,
    sink_line,
    windows_line,
)
from .written_text import Section, sections_of

BAR = 36
"""The maximum width of a bar in character cells."""

GUTTER = 2
"""The number of spaces between columns."""

LEAST_TEXT, NAME_SHARE = 12, 4
"""The minimum width of the column of texts; methods have at most a fourth of the line."""

BARS = ((150, BAR), (120, 20))
"""Width of a terminal -> width of the ledger's bar in a comparison; narrower terminals show the numbers only."""

LEAST_ENTRIES = 80
"""The width of a terminal from which on a comparison has a column for every entry of the ledger, not only two."""


def show(explanations: Sequence[Explanation], console: Console | None = None, *, numbers: bool = False) -> None:
    """Print explanations, one below the other; with `numbers`, the score of every word beside it."""
    console = console or Console()
    for explanation in explanations:
        console.print(_view(explanation, console, numbers))


def _view(raw: Explanation, console: Console, numbers: bool) -> RenderableType:
    """Return an explanation as a rich renderable: caption, coloured text or picture, legend, ledger."""
    explanation = displayed(raw)
    scale = scale_of([explanation])
    lines: list[RenderableType] = [_in_encoding(Line(caption(explanation), style="bold"), console)]
    lines += _notes(classes_line(explanation), windows_line(explanation))
    if explanation.picture is not None:
        lines += picture(explanation, scale, console)
    else:
        lines += _text(sections_of(raw), scale, console, console.width, numbers)
    lines += _notes(
        UNKNOWN_NOTE if explanation.picture is None and any(explanation.unknown) else "",
        colours_line(explanation, scale) if has_shades(console) else "",
        sink_line(explanation),
        hidden_line(explanation),
    )
    return Group(*lines, *ledger_block(explanation, console), Line())


def ledger_block(explanation: Explanation, console: Console) -> list[RenderableType]:
    """Return the waterfall of the ledger, and what a large gap means."""
    if explanation.ledger is None:
        return _notes(ledger_line(explanation))
    return [
        *ledger_lines(explanation.ledger, explanation.output, console),
        *_notes(ledger_note(explanation)),
    ]


def _text(
    sections: Sequence[Section], scale: float, console: Console, width: int, numbers: bool
) -> list[RenderableType]:
    """Return the coloured text; an explanation of several inputs has a titled section for each."""
    lines: list[RenderableType] = []
    for section in sections:
        lines += [Line(section.name, style="dim underline")] if section.name else []
        lines.append(written_line(section.pieces, scale, console, width, numbers))
        lines += _notes(section.asked.strip())
    return lines


def _notes(*texts: str) -> list[RenderableType]:
    return [Line(text, style="dim") for text in texts if text]


def _in_encoding(line: Line, console: Console) -> Line:
    """Return a line with separators that the encoding of the output has."""
    return line if has_unicode(console) else Line(line.plain.replace(" · ", " - "), style=line.style)


def show_comparison(comparison: Comparison, console: Console | None = None, *, numbers: bool = False) -> None:
    """Print one row for each method of a comparison; with `numbers`, the score of every word beside it."""
    rows: dict[str, Explanation | str] = {explanation.method: explanation for explanation in comparison}
    rows.update(comparison.refused)
    compare(rows, console, numbers=numbers)


def compare(rows: Mapping[str, Explanation | str], console: Console | None = None, *, numbers: bool = False) -> None:
    """Print one row for each method, or the reason if a method does not apply."""
    console = console or Console()
    texts = {name: sections_of(row) for name, row in rows.items() if isinstance(row, Explanation) and not row.picture}
    texts = {shown: texts[name] for name, shown in zip(rows, displayed(list(rows)), strict=True) if name in texts}
    rows = displayed(rows)
    explained = [row for row in rows.values() if isinstance(row, Explanation)]
    if explained:
        console.print(_in_encoding(Line(outcome(explained[0]), style="bold"), console))
        for note in _notes(classes_line(explained[0]), windows_line(explained[0])):
            console.print(note)
    pictured = bool(explained) and explained[0].picture is not None
    console.print(_pictures(rows, console) if pictured else _table(rows, texts, console, numbers))
    for note in _notes(*ledger_notes(explained)):
        console.print(note)
    if any(explanation.ledger is not None for explanation in explained):
        console.print(Line(f"{' + '.join(ENTRIES)} = output, {number(explained[0].output)}", style="dim"))
    unknown = any(piece.unknown for sections in texts.values() for section in sections for piece in section.pieces)
    for note in _notes(UNKNOWN_NOTE if unknown else "", scales_note(explained)):
        console.print(note)


@dataclass(frozen=True)
class _Widths:
    """The widths of the columns of a comparison in character cells; a width of 0 leaves a column out."""

    name: int
    text: int
    entries: Mapping[str, int]
    bar: int


def _widths(rows: Mapping[str, Explanation | str], width: int) -> _Widths:
    explained = [row for row in rows.values() if isinstance(row, Explanation)]
    ledgers = [row.ledger for row in explained if row.ledger is not None]
    name = min(width // NAME_SHARE, max(map(cell_len, ("method", *rows))))
    entries = {
        entry: max(len(entry), *(len(number(getattr(ledger, entry))) for ledger in ledgers))
        for entry in _entries(width)
        if ledgers
    }
    bar = next((bar for least, bar in BARS if width >= least), 0) if ledgers else 0
    # The bar has up to two cells more, for the zero line and for rounding.
    others = [name, *entries.values(), bar + 2 if bar else 0]
    text = width - sum(others) - GUTTER * sum(map(bool, others))
    return _Widths(name, max(LEAST_TEXT, text), entries, bar)


def _entries(width: int) -> Sequence[str]:
    """Return the entries of the ledger that have columns in a comparison."""
    return ENTRIES if width >= LEAST_ENTRIES else (ENTRIES[0], ENTRIES[-1])


def _cells(explanation: Explanation, entries: Iterable[str]) -> list[str]:
    """Return entries of the ledger as text; empty for a method without one."""
    ledger = explanation.ledger
    return ["" if ledger is None else number(getattr(ledger, entry)) for entry in entries]


def _table(
    rows: Mapping[str, Explanation | str], texts: Mapping[str, Sequence[Section]], console: Console, numbers: bool
) -> RenderableType:
    """Return the table of texts, with the ledger's entries and, in a wide terminal, its bar for each method."""
    widths = _widths(rows, console.width)
    table = Table(show_header=True, header_style="bold", box=None, pad_edge=False, padding=(0, GUTTER, 0, 0))
    table.add_column("method", width=widths.name, overflow="fold")
    table.add_column("text", min_width=LEAST_TEXT, max_width=widths.text, overflow="fold")
    for entry, width in widths.entries.items():
        table.add_column(entry, justify="right", min_width=width, no_wrap=True)
    if widths.bar:
        table.add_column("ledger", no_wrap=True)
    reach = reach_of(row.ledger for row in rows.values() if isinstance(row, Explanation) and row.ledger is not None)
    for name, row in rows.items():
        if isinstance(row, str):
            table.add_row(Line(name), Line(row, style="dim"))
            continue
        text = Group(*_text(texts.get(name, ()), scale_of([row]), console, widths.text, numbers))
        cells: list[RenderableType] = [Line(name), text, *_cells(row, widths.entries)]
        if widths.bar:
            cells.append("" if row.ledger is None else ledger_bar(row.ledger, reach, widths.bar, console))
        table.add_row(*cells)
    return Group(table, keys(console)) if widths.bar else table


def _pictures(rows: Mapping[str, Explanation | str], console: Console) -> RenderableType:
    """Return the table of graphs or images, with the largest scores of each method."""
    first = next(row for row in rows.values() if isinstance(row, Explanation))
    titles = ["method", f"largest scores ({node_noun(first)})", *(["virtual\nnode"] if virtual_node(first) else [])]
    table = Table(show_header=True, header_style="bold", box=None, pad_edge=False)
    for title in titles:
        table.add_column(title)
    entries = _entries(console.width - len("virtual") * (len(titles) > 2))
    for entry in entries:
        table.add_column(entry, justify="right", no_wrap=True)
    for name, row in rows.items():
        if isinstance(row, str):
            table.add_row(Line(name), Line(row, style="dim"))
            continue
        scale = scale_of([row])
        virtual = [scored("", score, scale, console) for _, score in virtual_node(row)]
        cells = [summary(row, scale, console), *([Line(" ").join(virtual)] if virtual_node(first) else [])]
        table.add_row(Line(name), *cells, *_cells(row, entries))
    return table
