"""A generation in the terminal: the text, and the source tokens of every generated token."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text as Line

from .._util.text import displayed
from ..errors import Error
from ..results.generation import Generation
from .generation_wording import first_token, headline, shown, strongest
from .terminal import ledger_block
from .terminal_text import coloured, fitted
from .wording import number, sink_line

SPACE, LINES = "  ", 2
"""Separator of columns and of sources, and the maximum number of lines for the sources of a token."""

LONGEST = 20
"""The maximum width of a token in the table; in narrow terminals it is a fifth of the line."""

NARROW = 72
"""Terminals narrower than this do not show the index of a step and its gap."""


def show_generation(generation: Generation, console: Console | None = None, steps: Sequence[int] | None = None) -> None:
    """Print a generation with the sources of its generated tokens, all or those at the indices `steps`."""
    console = console or Console()
    generation = displayed(generation)
    shown_steps = range(len(generation.steps)) if steps is None else steps
    for step in shown_steps:
        if not 0 <= step < len(generation.steps):
            many = len(generation.steps)
            raise Error(f"step={step} is not an index of the {many} generated tokens: give 0 to {many - 1}.")
    console.print(Line(headline(generation), style="bold"))
    for line in _text(generation):
        console.print(line)
    console.print()
    console.print(_table(generation, shown_steps, console))
    signs = any(step.ledger is not None or min(step.scores) < 0 for step in generation.steps)
    note = f"each row has its own colour scale{': red for, blue against the token' if signs else ''}"
    console.print(Line(f"{note}; the first token has its own column", style="dim"))
    if len(shown_steps) == len(generation.steps) or len(shown_steps) == 1:
        _print_ledger(generation, shown_steps, console)


def _print_ledger(generation: Generation, steps: Sequence[int], console: Console) -> None:
    """Print the ledger of one token, or of all tokens together."""
    if not steps:
        return
    together = generation.span(min(steps), max(steps))
    what = f"all {len(steps)} tokens together" if len(steps) > 1 else together.target
    console.print()
    console.print(Line(f"{what}: {number(together.output)}", style="bold"))
    if sink := sink_line(together):
        console.print(Line(sink, style="dim"))
    for line in ledger_block(together, console):
        console.print(line)


def _text(generation: Generation) -> list[Line]:
    """Return the text, one line per input, with generated tokens in bold."""
    lines, first = [], 0
    for name, count in generation.sections or (("", len(generation.features)),):
        line = Line(f"{name}: " if name else "", style="dim")
        for i in range(first, first + count):
            line.append(
                generation.features[i].replace("↵", "↵\n"), style="bold not dim" if i >= generation.start else ""
            )
        lines.append(line)
        first += count
    return lines


def _table(generation: Generation, steps: Sequence[int], console: Console) -> Table:
    part = slice(1, 5) if console.width < NARROW else slice(None)
    titles = ("step", "token", "prob.", generation.score, "first token", "gap")[part]
    longest = min(LONGEST, console.width // 5)
    rows = [_numbers(generation, step, longest)[part] for step in steps]
    widths = [max(map(cell_len, column)) for column in zip(titles, *rows, strict=True)]
    room = console.width - sum(widths) - len(SPACE) * len(titles)
    middle = titles.index("first token")
    table = Table(show_header=True, header_style="bold", box=None, pad_edge=False)
    columns = [*zip(titles, widths, strict=True)]
    for title, width in (*columns[:middle], ("came from", None), *columns[middle:]):
        side: JustifyMethod = "left" if title in ("token", "came from") else "right"
        table.add_column(Line(title), justify=side, no_wrap=True, width=width)
    for step, row in zip(steps, rows, strict=True):
        cells = [Line(text, style="bold" if title == "token" else "") for title, text in zip(titles, row, strict=True)]
        table.add_row(*cells[:middle], _sources(generation, step, room, console), *cells[middle:])
    return table


def _numbers(generation: Generation, i: int, longest: int) -> tuple[str, ...]:
    step = generation.steps[i]
    gap = "" if step.ledger is None else number(step.ledger.gap)
    first = first_token(generation, step)
    return str(i), fitted(shown(step.token), longest), f"{step.probability:.1%}", number(step.output), first, gap


def _sources(generation: Generation, i: int, room: int, console: Console) -> Line:
    """Return as many of the coloured sources of a token as fit."""
    sources = strongest(generation, generation.steps[i])
    scale = max((abs(score) for _, score in sources), default=0.0) or 1.0
    lines = [Line()]
    for name, score in sources:
        value = number(score)
        name = fitted(shown(name), max(1, min(LONGEST, room - len(value) - 1)))
        chip = coloured(f"{name} {value}", score, scale, console)
        if lines[-1] and lines[-1].cell_len + len(SPACE) + chip.cell_len > room:
            if len(lines) == LINES:
                break
            lines.append(Line())
        lines[-1].append(SPACE if lines[-1] else "").append(chip)
    return Line("\n").join(lines)
