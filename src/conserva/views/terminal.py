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
from .colours import GLYPHS, LEDGER, hexadecimal, ink, scale_of, shade
from .picture_nodes import node_noun, virtual_node
from .terminal_pictures import has_shades, picture, scored, sign, summary
from .wording import caption, ledger_line, number, scale_line, sink_line

BAR = 36


def show(explanations: Sequence[Explanation], console: Console | None = None, *, numbers: bool = False) -> None:
    """Print explanations, one below the other."""
    console = console or Console()
    for explanation in displayed(explanations):
        console.print(view(explanation, console))


def view(explanation: Explanation, console: Console) -> RenderableType:
    """Return an explanation as a rich renderable: caption, coloured tokens or picture, colour scale, ledger."""
    scale = scale_of([explanation])
    lines: list[RenderableType] = [Line(caption(explanation), style="bold")]
    lines += (
        sections(explanation, scale, console) if explanation.picture is None else picture(explanation, scale, console)
    )
    if console.color_system is not None:
        lines.append(Line(scale_line(scale), style="dim"))
    if explanation.sink is not None:
        lines.append(Line(sink_line(explanation), style="dim"))
    if explanation.ledger is not None:
        lines.append(ledger_bar(explanation, console))
    lines.append(Line(ledger_line(explanation), style="dim"))
    return Group(*lines, Line())


def sections(explanation: Explanation, scale: float, console: Console) -> list[RenderableType]:
    """Return the coloured tokens; an explanation of several inputs has a titled section for each."""
    lines: list[RenderableType] = []
    first = 0
    for name, count in explanation.sections:
        lines += [Line(name, style="dim"), tokens(explanation, scale, console, slice(first, first + count))]
        first += count
    return lines or [tokens(explanation, scale, console)]


def tokens(explanation: Explanation, scale: float, console: Console, part: slice = slice(None)) -> Line:
    """Return the tokens with coloured backgrounds, or followed by their scores if the terminal has too few colours."""
    line = Line()
    for feature, score in zip(explanation.features[part], explanation.scores[part], strict=True):
        if not has_shades(console):
            line.append(f"{feature}({number(score)}) ", style=sign(score))
            continue
        background = shade(score, scale)
        line.append(f" {feature} ", style=f"{hexadecimal(ink(background))} on {hexadecimal(background)}")
    return line


def ledger_bar(explanation: Explanation, console: Console) -> Line:
    """Return a bar of the absolute values of the ledger's entries, with a legend; without colours, by characters."""
    has_colours = console.color_system is not None
    glyphs = dict.fromkeys(ENTRIES, "█") if has_colours else GLYPHS
    sizes = {name: abs(getattr(explanation.ledger, name)) for name in ENTRIES}
    total = sum(sizes.values()) or 1.0
    bar = Line()
    for name, size in sizes.items():
        bar.append(glyphs[name] * round(BAR * size / total), style=LEDGER[name])
    for name in ENTRIES:
        bar.append("  ■" if has_colours else f"  {glyphs[name]}", style=LEDGER[name]).append(f" {name}")
    return bar


def show_comparison(comparison: Comparison, console: Console | None = None, *, numbers: bool = False) -> None:
    """Print one row for each method of a comparison."""
    compare({**{explanation.method: explanation for explanation in comparison}, **comparison.refused}, console)


def compare(rows: Mapping[str, Explanation | str], console: Console | None = None) -> None:
    """Print one row for each method, or the reason if a method does not apply."""
    console = console or Console()
    rows = displayed(rows)
    first = next((result for result in rows.values() if isinstance(result, Explanation)), None)
    pictures = first is not None and first.picture is not None
    has_virtual = first is not None and pictures and bool(virtual_node(first))
    shown = f"largest scores ({node_noun(first)})" if first is not None and pictures else "tokens"
    table = Table(show_header=True, header_style="bold", box=None, pad_edge=False)
    for title in ("method", shown, *(["virtual\nnode"] if has_virtual else []), "sum", "gap"):
        table.add_column(title, justify="right" if title in ("sum", "gap") else "left")
    for name, result in rows.items():
        if isinstance(result, str):
            table.add_row(Line(name), Line(result, style="dim"))
            continue
        scale = scale_of([result])
        cells = [tokens(result, scale, console)] if result.picture is None else _picture_cells(result, scale, console)
        gap = "" if result.ledger is None else number(result.ledger.gap)
        table.add_row(Line(name), *cells, number(sum(result.scores)), gap)
    if first is not None:
        console.print(Line(f"{first.target}: {number(first.output)} · {first.model}", style="bold"))
    console.print(table)
    console.print(Line("each row has its own colour scale: red for, blue against the target", style="dim"))


def _picture_cells(explanation: Explanation, scale: float, console: Console) -> list[Line]:
    virtual = [scored("", score, scale, console) for _, score in virtual_node(explanation)]
    return [summary(explanation, scale, console), *([Line(" ").join(virtual)] if virtual else [])]
