"""A trace as a heat map: layers from the bottom to the top, features along the other axis."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text as Line

from .._util.text import displayed
from ..results.trace import Trace
from .blocks import has_shades, sign
from .canvas import drawing, save_figure
from .colours import AGAINST, DARK, FOR, LIGHT, hexadecimal, shade
from .curves import INK, NOTE, _figure
from .html import PAGE, STYLE, ledger_part
from .terminal import ledger_bar
from .wording import caption, ledger_line, number, scale_line

MAP_STYLE = """
.conserva.trace{--ground:#fff;--line:#ddd}
.trace .map{overflow-x:auto;padding-bottom:.3rem}
.trace .map:focus-visible{outline:2px solid #888}
.trace table{border-collapse:separate;border-spacing:1px;font-size:.8rem;line-height:1.2}
.trace td.cell{background:var(--l);min-width:var(--cell);width:var(--cell);height:1.35rem;padding:0;
box-shadow:inset 0 0 0 1px rgba(128,128,128,.16)}
.trace td.cell:hover{outline:2px solid #888}
.trace td.none{background:repeating-linear-gradient(45deg,transparent 0 3px,var(--line) 3px 4px)}
.trace th{font-weight:400;text-align:left;white-space:nowrap}
.trace th[scope=row],.trace td.corner{position:sticky;left:0;background:var(--ground);padding:0 .6rem 0 0}
.trace th.label{padding:.3rem 0 0;vertical-align:top;font-size:var(--letters)}
.trace th.label span{writing-mode:vertical-rl;max-height:9rem;overflow:hidden;text-overflow:ellipsis;line-height:1;
white-space:pre}
.trace th.special{opacity:.7}
.trace td.sum{position:sticky;right:0;background:var(--ground);padding:0 0 0 .7rem;text-align:right;white-space:nowrap}
.trace tfoot td.sum{vertical-align:top}
@media (prefers-color-scheme:dark){.conserva.trace{--ground:#16181d;--line:#444}.trace td.cell{background:var(--d)}}
@media print{.trace td.cell,.trace .bar span,.trace .scale,.trace .key{-webkit-print-color-adjust:exact;
print-color-adjust:exact}}
"""

WIDE = 60
"""With more features than this the cells are narrow."""

LABELLED = 120
"""How many features a picture labels, at most: with more, every so many."""

LONGEST = 18
"""How many letters of a feature a picture shows."""

SUM, HIGH, FEW = 10, 12, 5
"""In a terminal: the room for a sum, the most letters of a label, and the places that stand as numbers."""

NOWHERE = "#eeeeee"
"""The colour of a place that a layer does not have, in a picture."""


def trace_page(trace: Trace) -> str:
    """Return a whole page. Its policy forbids it to load or run anything."""
    trace = displayed(trace)
    return PAGE.format(title=escape(_caption(trace)), body=trace_fragment(trace))


def trace_fragment(trace: Trace) -> str:
    """Return the part of a page that shows a trace, as notebooks take it."""
    trace = displayed(trace)
    scale = _scale(trace)
    rows = "\n".join(_row(trace, row, scale) for row in reversed(range(len(trace.layers))))
    tokens = "".join(
        f'<th class="label{" special" if special else ""}" scope="col" title="{escape(feature, quote=True)}">'
        f'<span dir="auto">{escape(feature)}</span></th>'
        for feature, special in zip(trace.features, trace.special, strict=True)
    )
    sizes = "--cell:1.4rem;--letters:.8rem" if len(trace.features) <= WIDE else "--cell:.6rem;--letters:.6rem"
    return "\n".join(
        [
            f'<style>{STYLE}{MAP_STYLE}</style>\n<section class="conserva trace" style="{sizes}">',
            f"<h2>{escape(_caption(trace))}</h2>",
            '<div class="map" tabindex="0" role="region" aria-label="relevance, layers by features">',
            f"<table>\n<tbody>\n{rows}\n</tbody>",
            f'<tfoot><tr><td class="corner"></td>{tokens}<td class="sum">sum</td></tr></tfoot>',
            "</table>\n</div>",
            f'<p class="note">{number(-scale)}<span class="scale"></span>{number(scale)} red for, blue against; '
            "point at a cell for its number</p>",
            f'<p class="note">{escape(_reading(trace))}</p>',
            ledger_part(trace.explanation()),
            "</section>",
        ]
    )


def show_trace(trace: Trace, console: Console | None = None) -> None:
    """Print a trace, a line for each layer; where a terminal has no shades, with the strongest places as numbers."""
    console = console or Console()
    trace = displayed(trace)
    one = trace.explanation()
    console.print(Line(_caption(trace), style="bold"))
    for line in _bands(trace, console.width) if has_shades(console) else _numbers(trace):
        console.print(line)
    if has_shades(console):
        console.print(Line(scale_line(_scale(trace)), style="dim"))
    console.print(Line(_reading(trace), style="dim"))
    if one.ledger is not None:
        console.print(ledger_bar(one))
    console.print(Line(ledger_line(one), style="dim"))


@drawing()
def draw_trace(trace: Trace, path: str | Path) -> None:
    """Draw a trace and save it; the ending of the name says as what."""
    from matplotlib.colors import LinearSegmentedColormap

    trace = displayed(trace)
    many, rows, scale = len(trace.features), len(trace.layers), _scale(trace)
    cell = 0.24 if many <= 40 else 9.0 / many
    every = -(-many // LABELLED)
    labels = {i: _short(trace.features[i]) for i in range(0, many, every)}
    figure = _figure(max(4.5, cell * many + 2.0), 0.2 * rows + 1.2 + 0.07 * max(map(len, labels.values())))
    three = [hexadecimal(one) for one in (AGAINST, LIGHT, FOR)]
    colours = LinearSegmentedColormap.from_list("for and against", three).with_extremes(bad=NOWHERE)
    axes = figure.subplots()
    values = [[float("nan") if score is None else score for score in row] for row in trace.scores]
    shown = axes.imshow(values, cmap=colours, vmin=-scale, vmax=scale, aspect="auto", origin="lower")
    axes.set_xticks(list(labels), list(labels.values()))
    axes.tick_params(axis="x", rotation=90, labelsize=7 if many <= 40 else 5.5, length=0, colors=INK)
    axes.set_yticks(range(rows), trace.layers)
    axes.tick_params(axis="y", labelsize=7, length=0, colors=INK)
    for row, total in enumerate(trace.sums):
        axes.annotate(
            number(total), (1.0, row), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            fontsize=6.5, color=NOTE, va="center",
        )  # fmt: skip
    axes.annotate(
        "sum", (1.0, 1.0), xycoords="axes fraction", xytext=(4, 3), textcoords="offset points", fontsize=6.5, color=NOTE
    )
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(_caption(trace), fontsize=8, color=INK, loc="left", weight="bold")
    bar = figure.colorbar(shown, ax=axes, location="bottom", fraction=0.05, aspect=40, shrink=0.5)
    bar.set_ticks([-scale, 0, scale], labels=[f"{number(-scale)} against", "0", f"{number(scale)} for"])
    bar.ax.tick_params(labelsize=6.5, length=0, colors=NOTE)
    bar.outline.set_linewidth(0.3)
    save_figure(figure, path)


def _caption(trace: Trace) -> str:
    return f"{caption(trace.explanation())}, layer by layer"


def _reading(trace: Trace) -> str:
    """Say what the sums mean."""
    return (
        f"the sum of a row and what joins or is lost above it make {number(trace.output)}: "
        f"{number(trace.output - trace.sums[0])} above the inputs, {number(trace.output - trace.sums[-1])} above "
        f"{trace.layers[-1]}"
    )


def _scale(trace: Trace) -> float:
    return max((abs(score) for row in trace.scores for score in row if score is not None), default=0.0) or 1.0


def _short(feature: str) -> str:
    """Return a feature as the label of a column."""
    said = " ".join(feature.split()) or repr(feature)
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}…"


def _row(trace: Trace, row: int, scale: float) -> str:
    name = escape(trace.layers[row])
    cells = "".join(
        _cell_of_page(name, feature, score, scale)
        for feature, score in zip(trace.features, trace.scores[row], strict=True)
    )
    return f'<tr><th scope="row">{name}</th>{cells}<td class="sum">{number(trace.sums[row])}</td></tr>'


def _cell_of_page(layer: str, feature: str, score: float | None, scale: float) -> str:
    said = escape(feature, quote=True)
    if score is None:
        return f'<td class="cell none" title="{layer} has no place for {said}"></td>'
    light, dark = (hexadecimal(shade(score, scale, ground)) for ground in (LIGHT, DARK))
    return (
        f'<td class="cell" style="--l:{light};--d:{dark}" data-score="{score:.6g}" '
        f'title="{layer} · {said} {number(score)}"></td>'
    )


def _bands(trace: Trace, width: int) -> Iterator[Line]:
    """Yield the map, in bands below each other where the features are too many for one."""
    scale, margin = _scale(trace), max(map(len, trace.layers)) + 1
    room = max(8, width - margin - SUM)
    across = 3 if 3 * len(trace.features) <= room else 2
    for first in range(0, len(trace.features), room // across):
        part = slice(first, min(first + room // across, len(trace.features)))
        for row in reversed(range(len(trace.layers))):
            line = Line(f"{trace.layers[row]:>{margin - 1}} ", no_wrap=True)
            for score in trace.scores[row][part]:
                line.append(*_cell(score, scale, across))
            if part.stop == len(trace.features):
                line.append(f" {number(trace.sums[row])}", style="dim")
            yield line
        # The features below their columns are read downwards.
        names = ["".join(feature.split())[:HIGH] for feature in trace.features[part]]
        for i in range(max(map(len, names))):
            letters = "".join(set_cell_size(name[i : i + 1], across) for name in names)
            yield Line(" " * margin + letters, style="dim", no_wrap=True)


def _cell(score: float | None, scale: float, across: int) -> tuple[str, str]:
    return ("·" * across, "dim") if score is None else (" " * across, f"on {hexadecimal(shade(score, scale))}")


def _numbers(trace: Trace) -> Iterator[Line]:
    """Yield for every layer its strongest places."""
    margin = max(map(len, trace.layers))
    for layer, scores, total in reversed(list(zip(trace.layers, trace.scores, trace.sums, strict=True))):
        line = Line(f"{layer:>{margin}} {number(total)} ")
        found = [(score, name) for score, name in zip(scores, trace.features, strict=True) if score]
        for score, name in sorted(found, key=lambda one: -abs(one[0]))[:FEW]:
            line.append(f" {name.strip()}({number(score)})", style=sign(score))
        yield line
