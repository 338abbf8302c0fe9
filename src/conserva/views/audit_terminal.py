"""Audits in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text as Line

from .._util.text import displayed
from ..auditing.result import Audit, Component
from .audit_wording import (
    BROKEN,
    GUIDE,
    HEAD,
    LEAKS,
    NORM,
    NUMBERS,
    RESIDUAL,
    above_rounding,
    amounts,
    coverage,
    direction,
    head_note,
    headline,
    heads,
    kinds,
    leaks,
    ledger_rows,
    module_label,
    norm_note,
    norms,
    operation,
    require_audits,
    samples,
    shortened,
    subject,
    unsigned,
    untraced,
    verdict,
)
from .colours import LEDGER
from .evaluation_terminal import GUTTER, Column, _blocks
from .terminal_ledger import ledger_lines
from .wording import CLOSED, number

TOP, LEAST, WIDEST, LEAK_BAR = 5, 16, 110, 20
"""Number of leaks shown; minimum width of a name; maximum width of a table; width of a bar."""

MORE = "All leaks, layers, heads, norms and rules: conserva audit --full, or audit.show(full=True) in Python."


def show(audit: Audit, console: Console | None = None, *, full: bool = False) -> None:
    """Print an audit: whether it adds up, the ledger, and the largest leaks.

    Parameters
    ----------
    audit
        The audit.
    console
        Where to print; the default is standard output.
    full
        Whether to print all leaks, and leaks by kind and layer, heads, norms, and the rule of each operation.
    """
    console = console or Console()
    audit = displayed(audit)
    console.print(Line(headline(audit), style="bold"))
    console.print(Line(verdict([audit])))
    console.print()
    for line in ledger_lines(audit.ledger, audit.output, console):
        console.print(line)
    shown = audit.ranked() if full else above_rounding(audit)[:TOP]
    _components(audit, console, shown)
    if rest := untraced(audit):
        console.print(Line(f"{number(rest)} of the gap is in no component: this audit is incomplete."))
    if not full:
        console.print(Line(MORE, style="dim"))
        return
    _kinds(audit, console)
    _layers(audit, console)
    _heads(audit, console)
    _norms(audit, console)
    _residuals(audit, console)
    _coverage(audit, console)


def compare(audits: Sequence[Audit], console: Console | None = None) -> None:
    """Print audits of one model under several rule sets side by side: ledgers, and leaks by kind of operation."""
    console = console or Console()
    audits = displayed(require_audits(audits))
    console.print(Line(f"{subject(audits[0])} · {samples(audits[0])}", style="bold"))
    console.print(Line(verdict(audits)))
    console.print(Line(GUIDE, style="dim"))
    for title, (names, rows) in {
        "The ledger": ledger_rows(audits),
        "Leaks by kind of operation": leaks(audits),
    }.items():
        cells = [tuple(row[i] for row in rows) for i in range(len(audits))]
        columns = [Column(audit.rules, part) for audit, part in zip(audits, cells, strict=True)]
        _title(console, title)
        _grid(console, Column("", tuple(names)), columns)
    console.print()


def _kinds(audit: Audit, console: Console) -> None:
    by_kind = kinds(audit)
    _title(console, "Leaks by kind of operation", LEAKS)
    columns = [
        Column("leak", tuple(number(leak) for leak, _ in by_kind.values())),
        Column("size", tuple(unsigned(size) for _, size in by_kind.values())),
    ]
    _grid(console, Column("kind", tuple(by_kind)), columns, _leak_bars(audit, [leak for leak, _ in by_kind.values()]))


def _components(audit: Audit, console: Console, shown: Sequence[Component]) -> None:
    """Print each component in two or three lines, so that names are complete and numbers aligned."""
    ranked = audit.ranked()
    _title(console, "What breaks conservation most", BROKEN if shown else "")
    if not ranked:
        console.print(Line("Nothing: every component conserves relevance."))
        return
    if not shown:
        console.print(Line(f"Nothing: the leaks of {len(ranked)} components are rounding errors."))
        return
    rows = [amounts(component) for component in shown]
    widths = [max(len(text) for text in column) for column in zip(NUMBERS, *rows, strict=True)]
    indent = len(str(len(shown))) + 2
    room = min(console.width, WIDEST) - indent
    gutter = GUTTER if sum(widths) + 2 * len(widths) <= room else 1

    def numbers(cells: Sequence[str], start: str) -> str:
        line = "".join(" " * gutter + text.rjust(width) for text, width in zip(cells, widths, strict=True))
        return start + line.rjust(room - cell_len(start))

    console.print(Line(" " * indent + numbers(NUMBERS, ""), style="bold", no_wrap=True))
    for rank, (component, cells) in enumerate(zip(shown, rows, strict=True), start=1):
        console.print(Line(f"{rank:>{indent - 2}}  {shortened(module_label(component.module), room)}", no_wrap=True))
        start = operation(component)
        if cell_len(start) > room - sum(widths) - gutter * len(widths):
            console.print(Line(" " * indent + shortened(start, room), style="dim", no_wrap=True))
            start = ""
        line = Line(" " * indent + numbers(cells, start), no_wrap=True)
        line.stylize("dim", 0, indent + len(start))
        console.print(line)
    if len(ranked) > len(shown):
        console.print(Line(f"... and {len(ranked) - len(shown)} more", style="dim"))


def _layers(audit: Audit, console: Console) -> None:
    by_layer = audit.layers()
    _title(console, "Layers, from the output down")
    columns = [
        Column("constants", tuple(number(constants) for constants, _ in by_layer.values())),
        Column("leak", tuple(number(leak) for _, leak in by_layer.values())),
    ]
    _grid(
        console, Column("layer", tuple(by_layer)), columns, _leak_bars(audit, [leak for _, leak in by_layer.values()])
    )


def _heads(audit: Audit, console: Console) -> None:
    if not audit.heads:
        return
    shown = heads(audit)
    _title(console, "Proposition 1: attention heads", f"{HEAD}\n{head_note(audit)}")
    columns = [
        Column("head", tuple(str(head.head) for head in shown)),
        Column("broke", tuple(number(head.broke) for head in shown)),
        Column("covariance", tuple(number(head.covariance) for head in shown)),
    ]
    _grid(console, Column("module", tuple(module_label(head.module) for head in shown)), columns)


def _norms(audit: Audit, console: Console) -> None:
    if not audit.norms:
        return
    shown = norms(audit)
    _title(console, "Proposition 2: norms", f"{NORM}\n{norm_note(audit)}")
    columns = [
        Column(name, tuple(number(getattr(norm, name)) for norm in shown))
        for name in ("entering", "leaving", "predicted")
    ]
    _grid(console, Column("module", tuple(module_label(norm.module) for norm in shown)), columns)


def _residuals(audit: Audit, console: Console) -> None:
    if not audit.residuals:
        return
    by_layer = dict(reversed(audit.cancelling().items()))
    _title(console, "Residual sums", f"{RESIDUAL}.")
    columns = [
        Column(name, tuple(f"{values[i]:.2f}" for values in by_layer.values()))
        for i, name in enumerate(("cancellation", "amplification"))
    ]
    _grid(console, Column("layer", tuple(by_layer)), columns)


def _coverage(audit: Audit, console: Console) -> None:
    rows = coverage(audit)
    _title(console, "Coverage: which rule was used for which operation")
    columns = [
        Column("calls", tuple(str(calls) for _, calls, _ in rows)),
        Column("modules", tuple(str(modules) for *_, modules in rows)),
    ]
    _grid(console, Column("function · kind · rule", tuple(operation(entry) for entry, *_ in rows)), columns)


def _title(console: Console, title: str, note: str = "") -> None:
    console.print()
    console.print(Line(title, style="bold"))
    if note:
        console.print(Line(note, style="dim"))


def _grid(console: Console, names: Column, columns: Sequence[Column], bars: Sequence[str] = ()) -> None:
    """Print a table of names and numbers; names are shortened in the middle to fit, numbers never."""
    need = sum(column.width + GUTTER for column in columns) + (LEAK_BAR + GUTTER if bars else 0)
    if console.width - need < names.width:
        need, bars = sum(column.width + GUTTER for column in columns), ()  # drop the bars before shortening names
    longest = min(names.width, max(LEAST, console.width - need))
    for block in _blocks([[column] for column in columns], console.width - longest):
        table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, padding=(0, GUTTER - 1, 0, 0))
        table.add_column(names.title, no_wrap=True)
        for column in block:
            table.add_column(Line(column.title), justify="right", no_wrap=True, min_width=column.width)
        if bars:
            table.add_column("", no_wrap=True)
        for i, name in enumerate(names.cells):
            end = [Line(bars[i], style=LEDGER["gap"])] if bars else []
            table.add_row(Line(shortened(name, longest)), *(Line(column.cells[i]) for column in block), *end)
        console.print(table)


def _leak_bars(audit: Audit, values: Sequence[float]) -> list[str]:
    """Return leaks as bars, in a lighter shade where relevance is counted twice; rounding errors have no bar."""
    largest = max(*map(abs, values), CLOSED * abs(audit.output)) or 1.0 if values else 1.0
    return [("█" if direction(audit) * value > 0 else "░") * round(LEAK_BAR * abs(value) / largest) for value in values]
