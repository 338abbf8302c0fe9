"""Audits in the terminal, and the texts and table rows shared with their other views."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text as Line

from .._util.text import displayed
from ..auditing.result import Audit, Component, Head, Norm
from ..engine.coverage import CoverageEntry
from ..engine.ledger import ENTRIES
from ..errors import Error
from .colours import GLYPHS, LEDGER
from .evaluation_terminal import GUTTER, Column, _blocks
from .terminal import BAR
from .wording import number

KINDS = ("attention", "norm", "activation", "product", "linear", "other")
CLOSED = 1e-3
"""A ledger closes if its gap, relative to the output, is at most this: more than rounding errors in float32."""

NUMBERS = ("entering", "leaving", "constants", "leak", "size")

HEADS, LEAST, WIDEST, LEAK_BAR = 6, 16, 110, 20
"""Number of heads shown; minimum width of a name; maximum width of a table; width of a bar."""

LEAKS = "█ lost, ░ counted twice; size: |leak|, mean over samples, added up over operations"
BROKEN = "entering = leaving + constants + leak; ranked by size: |leak|, mean over samples"
HEAD = "broke: how much more leaves than enters; covariance: the same, predicted by Proposition 1"
NORM = "entering: relevance of its output; leaving: of its input; predicted: by Proposition 2; under freeze: all"


# Texts and table rows


def headline(audit: Audit) -> str:
    """Return the title: model, target, rule set, number of samples."""
    return f"{subject(audit)} · rules {audit.rules} · {samples(audit)}"


def subject(audit: Audit) -> str:
    """Return model and target."""
    return f"{audit.model} · {audit.target}"


def samples(audit: Audit) -> str:
    """Return the number of samples with a noun."""
    return "1 sample" if audit.samples == 1 else f"{audit.samples} samples"


def ledger_line(audit: Audit) -> str:
    """Return the ledger in one line."""
    parts = [f"{name} {number(getattr(audit.ledger, name))}" for name in ENTRIES]
    return f"{' '.join(parts)} = {number(audit.output)}"


def share(value: float) -> str:
    """Return a share in per cent, or in scientific notation if that would be 0.0%."""
    return f"{value:.1%}" if value >= 0.0005 or value == 0 else f"{value:.0e}"


def closes(audit: Audit) -> bool:
    """Return whether the ledger closes for every sample, up to rounding."""
    return audit.relative_gap() <= CLOSED


def verdict(audit: Audit) -> str:
    """Return a sentence on whether the ledger closes, with the largest gap of a sample."""
    start = "The ledger closes" if closes(audit) else "The ledger does not close"
    return f"{start}: the largest gap of a sample is {share(audit.relative_gap())} of the largest output."


def unsigned(value: float) -> str:
    """Return a number without a plus sign."""
    return number(value).lstrip("+")


def shortened(text: str, room: int) -> str:
    """Shorten text in the middle: the ends of a module's name are the most informative."""
    if len(text) <= room:
        return text
    tail = room // 2
    return f"{text[: room - tail - 1]}…{text[len(text) - tail :]}"


def operation(component: Component | CoverageEntry) -> str:
    """Return function, kind and, if there is one, rule of an operation."""
    return " · ".join(part for part in (component.function, component.kind, component.rule) if part)


def module_label(module: str) -> str:
    """Return a module's name, or a label for the model itself, whose name is empty."""
    return module or "(the model itself)"


def amounts(component: Component) -> list[str]:
    """Return the values of the columns `NUMBERS`."""
    return [*(number(getattr(component, name)) for name in NUMBERS[:-1]), unsigned(component.size)]


def kinds(audit: Audit) -> dict[str, tuple[float, float]]:
    """Return kind of operation -> sum of the leaks, sum of their sizes."""
    leaks = audit.kinds()
    order = [kind for kind in KINDS if kind in leaks] + [kind for kind in leaks if kind not in KINDS]
    return {
        kind: (leaks[kind], sum(component.size for component in audit.components if component.kind == kind))
        for kind in order
    }


def untraced(audit: Audit) -> float:
    """Return the part of the gap that no component explains: 0 up to rounding if the audit is complete."""
    rest = audit.ledger.gap - sum(audit.kinds().values())
    return rest if abs(rest) > CLOSED * max(abs(audit.output), abs(audit.ledger.gap)) else 0.0


def heads(audit: Audit) -> list[Head]:
    """Return the heads, sorted by how much they break conservation, as measured or predicted."""
    return sorted(audit.heads, key=lambda head: -max(abs(head.broke), abs(head.covariance)))


def norms(audit: Audit) -> list[Norm]:
    """Return the norms, sorted by the relevance that enters them."""
    return sorted(audit.norms, key=lambda norm: -abs(norm.entering))


def head_error(audit: Audit) -> float:
    """Return the largest deviation of a head from Proposition 1."""
    return max((abs(head.broke - head.covariance) for head in audit.heads), default=0.0)


def norm_error(audit: Audit) -> float:
    """Return the largest deviation of a norm from Proposition 2."""
    return max((abs(norm.leaving - norm.predicted) for norm in audit.norms), default=0.0)


def agrees(audit: Audit, kind: str) -> bool | None:
    """Return whether a proposition holds up to rounding; None if another rule than the gradient was used."""
    if rules_used(audit, kind) - {"gradient"}:
        return None
    if kind == "attention":
        scale = max((max(abs(part.broke), abs(part.entering)) for part in audit.heads), default=0.0)
        return head_error(audit) <= CLOSED * scale
    return norm_error(audit) <= CLOSED * max((abs(part.entering) for part in audit.norms), default=0.0)


def rules_used(audit: Audit, kind: str) -> set[str]:
    """Return the rules that were used for operations of a kind."""
    entries: Sequence[Component | CoverageEntry] = (*audit.coverage, *audit.components)
    return {entry.rule for entry in entries if entry.kind == kind and entry.rule}


def head_note(audit: Audit) -> str:
    """Return a note on how the heads compare with Proposition 1."""
    return _agreement(audit, "attention", head_error(audit), len(audit.heads), "head")


def norm_note(audit: Audit) -> str:
    """Return a note on how the norms compare with Proposition 2."""
    return _agreement(audit, "norm", norm_error(audit), len(audit.norms), "norm")


def _agreement(audit: Audit, kind: str, error: float, count: int, word: str) -> str:
    holds = agrees(audit, kind)
    over = f"over {'the one' if count == 1 else f'all {count}'} {word}{'s' * (count > 1)}"
    if holds is None:
        rules = ", ".join(sorted(rules_used(audit, kind) - {"gradient"}))
        return (
            f"The proposition is about the plain gradient; here the rule was {rules}. "
            f"Largest difference {over}: {unsigned(error)}."
        )
    return f"It {'holds' if holds else 'does NOT hold'}: largest disagreement {over}: {unsigned(error)}."


def coverage(audit: Audit) -> list[tuple[CoverageEntry, int, int]]:
    """Return each combination of kind, function and rule, with its numbers of calls and of modules."""
    by_operation: dict[str, list[CoverageEntry]] = {}
    order = {kind: i for i, kind in enumerate(KINDS)}
    for entry in sorted(audit.coverage, key=lambda entry: order.get(entry.kind, len(order))):
        by_operation.setdefault(operation(entry), []).append(entry)
    return [
        (entries[0], sum(entry.times for entry in entries), len({entry.module for entry in entries}))
        for entries in by_operation.values()
    ]


def require_audits(audits: Sequence[Audit]) -> Sequence[Audit]:
    """Return the audits; raise `Error` if there are none."""
    if not audits:
        raise Error("Got no audit to show: give at least one.")
    return audits


# The terminal


def show(audit: Audit, console: Console | None = None, most: int = 12, *, full: bool = False) -> None:
    """Print an audit: the ledger, the leaks, the propositions, and the rule of each operation."""
    console = console or Console()
    audit = displayed(audit)
    console.print(Line(headline(audit), style="bold"))
    console.print(_bar(audit, console))
    console.print(Line(ledger_line(audit), style="dim"))
    console.print(Line(verdict(audit)))
    _kinds(audit, console)
    _components(audit, console, most)
    _layers(audit, console)
    _heads(audit, console)
    _norms(audit, console, most)
    _coverage(audit, console)


def compare(audits: Sequence[Audit], console: Console | None = None) -> None:
    """Print audits of one model under several rule sets side by side: ledgers, and leaks by kind of operation."""
    console = console or Console()
    audits = displayed(require_audits(audits))
    console.print(Line(f"{subject(audits[0])} · {samples(audits[0])}", style="bold"))
    for title, (names, rows) in {
        "The ledger": ledger_rows(audits),
        "Leaks by kind of operation": leaks(audits),
    }.items():
        cells = [tuple(row[i] for row in rows) for i in range(len(audits))]
        columns = [Column(audit.rules, part) for audit, part in zip(audits, cells, strict=True)]
        _title(console, title)
        _grid(console, Column("", tuple(names)), columns)
    console.print()
    console.print(Line("worst gap: the largest gap of a sample, relative to the largest output", style="dim"))


def ledger_rows(audits: Sequence[Audit]) -> tuple[list[str], list[list[str]]]:
    """Return the names of the ledger's entries, and a row of cells for each, one cell per rule set."""
    rows = [[number(audit.output) for audit in audits]]
    rows += [[number(getattr(audit.ledger, name)) for audit in audits] for name in ENTRIES]
    return ["output", *ENTRIES, "worst gap"], [*rows, [share(audit.relative_gap()) for audit in audits]]


def leaks(audits: Sequence[Audit]) -> tuple[list[str], list[list[str]]]:
    """Return the kinds of operations, and a row of cells for each: the leak under each rule set."""
    by_audit = [kinds(audit) for audit in audits]
    seen = dict.fromkeys(kind for by_kind in by_audit for kind in by_kind)
    order = [kind for kind in KINDS if kind in seen] + [kind for kind in seen if kind not in KINDS]
    return order, [[number(by_kind[kind][0]) if kind in by_kind else "-" for by_kind in by_audit] for kind in order]


def _bar(audit: Audit, console: Console) -> Line:
    """Return a bar of the absolute values of the ledger's entries, with a legend."""
    fills = GLYPHS if console.color_system is None else dict.fromkeys(ENTRIES, "█")
    keys = {name: f"  {fills[name] if fills is GLYPHS else '■'} " for name in ENTRIES}
    room = min(BAR, console.width - sum(len(key) + len(name) for name, key in keys.items()) - 1)
    sizes = {name: abs(getattr(audit.ledger, name)) for name in ENTRIES}
    total = sum(sizes.values()) or 1.0
    bar = Line(no_wrap=True)
    for name, size in sizes.items():
        bar.append(fills[name] * round(room * size / total), style=LEDGER[name])
    for name, key in keys.items():
        bar.append(key, style=LEDGER[name]).append(name)
    return bar


def _kinds(audit: Audit, console: Console) -> None:
    by_kind = kinds(audit)
    _title(console, "Leaks by kind of operation", LEAKS)
    columns = [
        Column("leak", tuple(number(leak) for leak, _ in by_kind.values())),
        Column("size", tuple(unsigned(size) for _, size in by_kind.values())),
    ]
    _grid(console, Column("kind", tuple(by_kind)), columns, _leak_bars(audit, [leak for leak, _ in by_kind.values()]))
    if rest := untraced(audit):
        console.print(Line(f"{number(rest)} of the gap is in no component: this audit is incomplete."))


def _components(audit: Audit, console: Console, most: int) -> None:
    """Print each component in two or three lines, so that names are complete and numbers aligned."""
    ranked = audit.ranked()
    _title(console, "What breaks conservation most", BROKEN)
    if not ranked:
        console.print(Line("Nothing: every component conserves relevance."))
        return
    shown = ranked[:most]
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
    _more(console, len(ranked) - len(shown))


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
    shown = heads(audit)[:HEADS]
    _title(console, "Proposition 1: attention heads", f"{HEAD}\n{head_note(audit)}")
    columns = [
        Column("head", tuple(str(head.head) for head in shown)),
        Column("broke", tuple(number(head.broke) for head in shown)),
        Column("covariance", tuple(number(head.covariance) for head in shown)),
    ]
    _grid(console, Column("module", tuple(module_label(head.module) for head in shown)), columns)
    _more(console, len(audit.heads) - len(shown))


def _norms(audit: Audit, console: Console, most: int) -> None:
    if not audit.norms:
        return
    shown = norms(audit)[:most]
    _title(console, "Proposition 2: norms", f"{NORM}\n{norm_note(audit)}")
    columns = [
        Column(name, tuple(number(getattr(norm, name)) for norm in shown))
        for name in ("entering", "leaving", "predicted")
    ]
    _grid(console, Column("module", tuple(module_label(norm.module) for norm in shown)), columns)
    _more(console, len(audit.norms) - len(shown))


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


def _more(console: Console, count: int) -> None:
    if count > 0:
        console.print(Line(f"... and {count} more", style="dim"))


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
    """Return leaks as bars, in a lighter shade below 0; rounding errors have no bar."""
    largest = max(*map(abs, values), CLOSED * abs(audit.output)) or 1.0 if values else 1.0
    return [("█" if value > 0 else "░") * round(LEAK_BAR * abs(value) / largest) for value in values]
