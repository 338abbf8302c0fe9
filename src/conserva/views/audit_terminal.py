"""Audits in the terminal, and the words and rows that their other views use alike."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text as Line

from .._util.text import displayed
from ..auditing.result import Audit, Component, Head, Norm
from ..engine.coverage import Meeting
from ..engine.ledger import ENTRIES
from ..errors import Error
from .colours import LEDGER
from .evaluation_terminal import GUTTER, Column, _blocks
from .terminal import BAR
from .wording import number

KINDS = ("attention", "norm", "activation", "product", "linear", "other")
CLOSED = 1e-3
"""The gap, as a share of the output, up to which books count as closed: above what rounding leaves in 32 bits."""

NUMBERS = ("entering", "leaving", "constants", "leak", "size")
PLAIN = dict(zip(ENTRIES, "█▓▒░", strict=True))
"""What a bar is made of where a terminal has no colours to tell its parts apart."""

HEADS, LEAST, WIDEST, STRIP = 6, 16, 110, 20
"""Heads shown; cells a name keeps, however narrow the terminal; cells a table takes, however wide; cells of a bar."""

LEAKS = "█ lost, ░ counted twice; size: the same without signs, which does not cancel"
BROKEN = "entering = leaving + constants + leak; ranked by size, the leak without signs"
HEAD = "broke: how much more leaves than enters; covariance: what Proposition 1 says"
NORM = "entering: relevance of its output; predicted: what Proposition 2 lets leave"


# Words and rows


def headline(audit: Audit) -> str:
    """Say what was audited: model, target, rule set, samples."""
    return f"{subject(audit)} · rules {audit.rules} · {samples(audit)}"


def subject(audit: Audit) -> str:
    """Say what is explained, on which model."""
    return f"{audit.model} · {audit.target}"


def samples(audit: Audit) -> str:
    """Say how many samples the means are over."""
    return "1 sample" if audit.samples == 1 else f"{audit.samples} samples"


def ledger_line(audit: Audit) -> str:
    """Return the books in one line."""
    parts = [f"{name} {number(getattr(audit, name))}" for name in ENTRIES]
    return f"{' '.join(parts)} = {number(audit.output)}"


def share(value: float) -> str:
    """Return a share as per cent; where that would read 0.0, as a power of ten."""
    return f"{value:.1%}" if value >= 0.0005 or value == 0 else f"{value:.0e}"


def closes(audit: Audit) -> bool:
    """Return whether the books close, for every sample and but for rounding."""
    return audit.relative_gap() <= CLOSED


def verdict(audit: Audit) -> str:
    """Say whether the books close, and how far off the worst sample is."""
    start = "The books close" if closes(audit) else "The books do not close"
    return f"{start}: a sample's gap is up to {share(audit.relative_gap())} of the largest output."


def unsigned(value: float) -> str:
    """Return a number that has no sign to show."""
    return number(value).lstrip("+")


def middle(text: str, room: int) -> str:
    """Shorten text in the middle: of a module's name both ends tell most."""
    if len(text) <= room:
        return text
    tail = room // 2
    return f"{text[: room - tail - 1]}…{text[len(text) - tail :]}"


def operation(one: Component | Meeting) -> str:
    """Say what was called, of which kind, under which rule, if it needs one."""
    return " · ".join(part for part in (one.function, one.kind, one.rule) if part)


def named(module: str) -> str:
    """Return a module's name; the model itself has none."""
    return module or "(the model itself)"


def amounts(one: Component) -> list[str]:
    """Return what stands below `NUMBERS`."""
    return [*(number(getattr(one, name)) for name in NUMBERS[:-1]), unsigned(one.size)]


def kinds(audit: Audit) -> dict[str, tuple[float, float]]:
    """Return for each kind of operation what leaks, and its size, which does not cancel."""
    leaks = audit.kinds()
    order = [kind for kind in KINDS if kind in leaks] + [kind for kind in leaks if kind not in KINDS]
    return {kind: (leaks[kind], sum(one.size for one in audit.components if one.kind == kind)) for kind in order}


def untraced(audit: Audit) -> float:
    """Return what part of the gap is in no component: 0 but for rounding, or the audit has missed something."""
    rest = audit.gap - sum(audit.kinds().values())
    return rest if abs(rest) > CLOSED * max(abs(audit.output), abs(audit.gap)) else 0.0


def heads(audit: Audit) -> list[Head]:
    """Return the heads, those first that break conservation most, or should."""
    return sorted(audit.heads, key=lambda one: -max(abs(one.broke), abs(one.covariance)))


def norms(audit: Audit) -> list[Norm]:
    """Return the norms, those first that most enters."""
    return sorted(audit.norms, key=lambda one: -abs(one.entering))


def head_error(audit: Audit) -> float:
    """Return the largest distance of a head from Proposition 1."""
    return max((abs(one.broke - one.covariance) for one in audit.heads), default=0.0)


def norm_error(audit: Audit) -> float:
    """Return the largest distance of a norm from Proposition 2."""
    return max((abs(one.leaving - one.predicted) for one in audit.norms), default=0.0)


def agrees(audit: Audit, kind: str) -> bool | None:
    """Return whether a proposition holds but for rounding; None where another rule than its gradient was at work."""
    if rules_met(audit, kind) - {"gradient"}:
        return None
    if kind == "attention":
        scale = max((max(abs(one.broke), abs(one.entering)) for one in audit.heads), default=0.0)
        return head_error(audit) <= CLOSED * scale
    return norm_error(audit) <= CLOSED * max((abs(one.entering) for one in audit.norms), default=0.0)


def rules_met(audit: Audit, kind: str) -> set[str]:
    """Return the rules that operations of a kind met."""
    every: Sequence[Component | Meeting] = (*audit.coverage, *audit.components)
    return {one.rule for one in every if one.kind == kind and one.rule}


def head_note(audit: Audit) -> str:
    """Say how the heads compare with Proposition 1."""
    return _agreement(audit, "attention", head_error(audit), len(audit.heads), "head")


def norm_note(audit: Audit) -> str:
    """Say how the norms compare with Proposition 2."""
    return _agreement(audit, "norm", norm_error(audit), len(audit.norms), "norm")


def _agreement(audit: Audit, kind: str, error: float, count: int, word: str) -> str:
    found = agrees(audit, kind)
    over = f"over {'the one' if count == 1 else f'all {count}'} {word}{'s' * (count > 1)}"
    if found is None:
        rules = ", ".join(sorted(rules_met(audit, kind) - {"gradient"}))
        return (
            f"It speaks of the plain gradient; here the rule was {rules}. Largest difference {over}: {unsigned(error)}."
        )
    return f"It {'holds' if found else 'does NOT hold'}: largest disagreement {over}: {unsigned(error)}."


def coverage(audit: Audit) -> list[tuple[Meeting, int, int]]:
    """Return each kind, function and rule that met, in how many calls of how many modules."""
    met: dict[str, list[Meeting]] = {}
    order = {kind: i for i, kind in enumerate(KINDS)}
    for one in sorted(audit.coverage, key=lambda one: order.get(one.kind, len(order))):
        met.setdefault(operation(one), []).append(one)
    return [(all_[0], sum(one.times for one in all_), len({one.module for one in all_})) for all_ in met.values()]


def some(audits: Sequence[Audit]) -> Sequence[Audit]:
    """Return the audits, if there are any."""
    if not audits:
        raise Error("There is no audit to show: give at least one.")
    return audits


# The terminal


def show(audit: Audit, console: Console | None = None, most: int = 12) -> None:
    """Print an audit: the books, where they leak, what the propositions say, and what met which rule."""
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
    """Print several rule sets of one model side by side: the books, and the leaks by kind of operation."""
    console = console or Console()
    audits = displayed(some(audits))
    console.print(Line(f"{subject(audits[0])} · {samples(audits[0])}", style="bold"))
    for title, (names, rows) in {"The books": books(audits), "Leaks by kind of operation": leaks(audits)}.items():
        cells = [tuple(row[i] for row in rows) for i in range(len(audits))]
        columns = [Column(one.rules, part) for one, part in zip(audits, cells, strict=True)]
        _title(console, title)
        _grid(console, Column("", tuple(names)), columns)
    console.print()
    console.print(Line("worst gap: of a sample, as a share of the largest output", style="dim"))


def books(audits: Sequence[Audit]) -> tuple[list[str], list[list[str]]]:
    """Return the names of the ledger's entries, and for each a row with a cell for each rule set."""
    rows = [[number(getattr(one, name)) for one in audits] for name in ("output", *ENTRIES)]
    return ["output", *ENTRIES, "worst gap"], [*rows, [share(one.relative_gap()) for one in audits]]


def leaks(audits: Sequence[Audit]) -> tuple[list[str], list[list[str]]]:
    """Return the kinds of operations, and for each what leaks under each rule set."""
    found = [kinds(one) for one in audits]
    seen = dict.fromkeys(kind for one in found for kind in one)
    order = [kind for kind in KINDS if kind in seen] + [kind for kind in seen if kind not in KINDS]
    return order, [[number(one[kind][0]) if kind in one else "-" for one in found] for kind in order]


def _bar(audit: Audit, console: Console) -> Line:
    """Return the size of every entry as a bar; their signs are in the line below."""
    fills = PLAIN if console.color_system is None else dict.fromkeys(ENTRIES, "█")
    keys = {name: f"  {fills[name] if fills is PLAIN else '■'} " for name in ENTRIES}
    room = min(BAR, console.width - sum(len(key) + len(name) for name, key in keys.items()) - 1)
    sizes = {name: abs(getattr(audit, name)) for name in ENTRIES}
    total = sum(sizes.values()) or 1.0
    bar = Line(no_wrap=True)
    for name, size in sizes.items():
        bar.append(fills[name] * round(room * size / total), style=LEDGER[name])
    for name, key in keys.items():
        bar.append(key, style=LEDGER[name]).append(name)
    return bar


def _kinds(audit: Audit, console: Console) -> None:
    found = kinds(audit)
    _title(console, "Leaks by kind of operation", LEAKS)
    columns = [
        Column("leak", tuple(number(leak) for leak, _ in found.values())),
        Column("size", tuple(unsigned(size) for _, size in found.values())),
    ]
    _grid(console, Column("kind", tuple(found)), columns, _strip(audit, [leak for leak, _ in found.values()]))
    if rest := untraced(audit):
        console.print(Line(f"{number(rest)} of the gap is in no component: this audit has missed something."))


def _components(audit: Audit, console: Console, most: int) -> None:
    """Print the components in two lines each, or three: names whole, numbers below each other."""
    ranked = audit.ranked()
    _title(console, "What breaks conservation most", BROKEN)
    if not ranked:
        console.print(Line("Nothing does: every component hands on all that enters it."))
        return
    shown = ranked[:most]
    rows = [amounts(one) for one in shown]
    widths = [max(len(text) for text in column) for column in zip(NUMBERS, *rows, strict=True)]
    indent = len(str(len(shown))) + 2
    room = min(console.width, WIDEST) - indent
    gutter = GUTTER if sum(widths) + 2 * len(widths) <= room else 1

    def numbers(cells: Sequence[str], start: str) -> str:
        line = "".join(" " * gutter + text.rjust(width) for text, width in zip(cells, widths, strict=True))
        return start + line.rjust(room - cell_len(start))

    console.print(Line(" " * indent + numbers(NUMBERS, ""), style="bold", no_wrap=True))
    for rank, (one, cells) in enumerate(zip(shown, rows, strict=True), start=1):
        console.print(Line(f"{rank:>{indent - 2}}  {middle(named(one.module), room)}", no_wrap=True))
        start = operation(one)
        if cell_len(start) > room - sum(widths) - gutter * len(widths):
            console.print(Line(" " * indent + middle(start, room), style="dim", no_wrap=True))
            start = ""
        line = Line(" " * indent + numbers(cells, start), no_wrap=True)
        line.stylize("dim", 0, indent + len(start))
        console.print(line)
    _more(console, len(ranked) - len(shown))


def _layers(audit: Audit, console: Console) -> None:
    found = audit.layers()
    _title(console, "Layers, from the output down")
    columns = [
        Column("constants", tuple(number(constants) for constants, _ in found.values())),
        Column("leak", tuple(number(leak) for _, leak in found.values())),
    ]
    _grid(console, Column("layer", tuple(found)), columns, _strip(audit, [leak for _, leak in found.values()]))


def _heads(audit: Audit, console: Console) -> None:
    if not audit.heads:
        return
    shown = heads(audit)[:HEADS]
    _title(console, "Proposition 1: attention heads", f"{HEAD}\n{head_note(audit)}")
    columns = [
        Column("head", tuple(str(one.head) for one in shown)),
        Column("broke", tuple(number(one.broke) for one in shown)),
        Column("covariance", tuple(number(one.covariance) for one in shown)),
    ]
    _grid(console, Column("module", tuple(named(one.module) for one in shown)), columns)
    _more(console, len(audit.heads) - len(shown))


def _norms(audit: Audit, console: Console, most: int) -> None:
    if not audit.norms:
        return
    shown = norms(audit)[:most]
    _title(console, "Proposition 2: norms", f"{NORM}\n{norm_note(audit)}")
    columns = [
        Column(name, tuple(number(getattr(one, name)) for one in shown))
        for name in ("entering", "leaving", "predicted")
    ]
    _grid(console, Column("module", tuple(named(one.module) for one in shown)), columns)
    _more(console, len(audit.norms) - len(shown))


def _coverage(audit: Audit, console: Console) -> None:
    found = coverage(audit)
    _title(console, "Coverage: what met which rule")
    columns = [
        Column("calls", tuple(str(calls) for _, calls, _ in found)),
        Column("modules", tuple(str(modules) for *_, modules in found)),
    ]
    _grid(console, Column("function · kind · rule", tuple(operation(one) for one, *_ in found)), columns)


def _title(console: Console, title: str, note: str = "") -> None:
    console.print()
    console.print(Line(title, style="bold"))
    if note:
        console.print(Line(note, style="dim"))


def _more(console: Console, count: int) -> None:
    if count > 0:
        console.print(Line(f"... and {count} more", style="dim"))


def _grid(console: Console, names: Column, columns: Sequence[Column], strip: Sequence[str] = ()) -> None:
    """Print names and numbers: a name gives way in the middle, a number never, nor does it wrap."""
    need = sum(one.width + GUTTER for one in columns) + (STRIP + GUTTER if strip else 0)
    if console.width - need < names.width:
        need, strip = sum(one.width + GUTTER for one in columns), ()  # the bars go before a name does
    longest = min(names.width, max(LEAST, console.width - need))
    for block in _blocks([[one] for one in columns], console.width - longest):
        table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, padding=(0, GUTTER - 1, 0, 0))
        table.add_column(names.title, no_wrap=True)
        for one in block:
            table.add_column(Line(one.title), justify="right", no_wrap=True, min_width=one.width)
        if strip:
            table.add_column("", no_wrap=True)
        for i, name in enumerate(names.cells):
            end = [Line(strip[i], style=LEDGER["gap"])] if strip else []
            table.add_row(Line(middle(name, longest)), *(Line(one.cells[i]) for one in block), *end)
        console.print(table)


def _strip(audit: Audit, values: Sequence[float]) -> list[str]:
    """Return leaks as bars; what is below 0 is told apart by its shade, and what is rounding has none."""
    largest = max(*map(abs, values), CLOSED * abs(audit.output)) or 1.0 if values else 1.0
    return [("█" if value > 0 else "░") * round(STRIP * abs(value) / largest) for value in values]
