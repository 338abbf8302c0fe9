"""Explanations in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text as Line

from .._util.text import displayed
from ..engine.ledger import ENTRIES
from ..results.explanation import Explanation
from ..results.explanations import Comparison
from .colours import LEDGER, hexadecimal, ink, scale_of, shade
from .picture_nodes import called, virtual_node
from .terminal_pictures import has_shades, picture, scored, sign, summary
from .wording import caption, ledger_line, number, scale_line, sink_line

BAR = 36


def show(explanations: Sequence[Explanation], console: Console | None = None) -> None:
    """Print explanations, one below the other."""
    console = console or Console()
    for one in displayed(explanations):
        console.print(view(one, console))


def view(one: Explanation, console: Console) -> RenderableType:
    """Return one explanation: caption, coloured tokens or a picture, the scale, the ledger."""
    scale = scale_of([one])
    lines: list[RenderableType] = [Line(caption(one), style="bold")]
    lines += sections(one, scale, console) if one.picture is None else picture(one, scale, console)
    lines.append(Line(scale_line(scale), style="dim"))
    if one.sink is not None:
        lines.append(Line(sink_line(one), style="dim"))
    if one.ledger is not None:
        lines.append(ledger_bar(one))
    lines.append(Line(ledger_line(one), style="dim"))
    return Group(*lines, Line())


def sections(one: Explanation, scale: float, console: Console) -> list[RenderableType]:
    """Return the tokens, those of each input by themselves where there are several."""
    lines: list[RenderableType] = []
    first = 0
    for name, count in one.sections:
        lines += [Line(name, style="dim"), tokens(one, scale, console, slice(first, first + count))]
        first += count
    return lines or [tokens(one, scale, console)]


def tokens(one: Explanation, scale: float, console: Console, part: slice = slice(None)) -> Line:
    """Return the tokens on their colours; where a terminal has no shades, with their numbers."""
    line = Line()
    for feature, score in zip(one.features[part], one.scores[part], strict=True):
        if not has_shades(console):
            line.append(f"{feature}({number(score)}) ", style=sign(score))
            continue
        background = shade(score, scale)
        line.append(f" {feature} ", style=f"{hexadecimal(ink(background))} on {hexadecimal(background)}")
    return line


def ledger_bar(one: Explanation) -> Line:
    """Return the size of every entry as a bar; their signs are in the line below."""
    sizes = {name: abs(getattr(one.ledger, name)) for name in ENTRIES}
    total = sum(sizes.values()) or 1.0
    bar = Line()
    for name, size in sizes.items():
        bar.append("█" * round(BAR * size / total), style=LEDGER[name])
    for name in ENTRIES:
        bar.append("  ■", style=LEDGER[name]).append(f" {name}")
    return bar


def show_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print one row for each method of a comparison."""
    compare({**{one.method: one for one in comparison}, **comparison.refused}, console)


def compare(rows: Mapping[str, Explanation | str], console: Console | None = None) -> None:
    """Print one row for each method; a method that does not apply says why."""
    console = console or Console()
    rows = displayed(rows)
    first = next((one for one in rows.values() if isinstance(one, Explanation)), None)
    pictures = first is not None and first.picture is not None
    has_virtual = first is not None and pictures and bool(virtual_node(first))
    shown = f"largest scores ({called(first)})" if first is not None and pictures else "tokens"
    table = Table(show_header=True, header_style="bold", box=None, pad_edge=False)
    for title in ("method", shown, *(["virtual\nnode"] if has_virtual else []), "sum", "gap"):
        table.add_column(title, justify="right" if title in ("sum", "gap") else "left")
    for name, one in rows.items():
        if isinstance(one, str):
            table.add_row(Line(name), Line(one, style="dim"))
            continue
        scale = scale_of([one])
        cells = [tokens(one, scale, console)] if one.picture is None else _picture_cells(one, scale, console)
        gap = "" if one.ledger is None else number(one.ledger.gap)
        table.add_row(Line(name), *cells, number(sum(one.scores)), gap)
    if first is not None:
        console.print(Line(f"{first.target}: {number(first.output)} · {first.model}", style="bold"))
    console.print(table)
    console.print(Line("each row on its own scale, red for, blue against", style="dim"))


def _picture_cells(one: Explanation, scale: float, console: Console) -> list[Line]:
    apart = [scored("", score, scale, console) for _, score in virtual_node(one)]
    return [summary(one, scale, console), *([Line(" ").join(apart)] if apart else [])]
