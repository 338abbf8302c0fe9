"""A trace as a heat map, in the terminal and as a picture: layers from bottom to top, features from left to right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text as Line

from .._util.text import displayed
from ..results.explanation import Explanation, Sink
from ..results.trace import Trace
from .colours import AGAINST, FOR, LIGHT, hexadecimal, terminal_style
from .curves import INK, NOTE, _figure
from .generation_wording import shown
from .matplotlib_figures import drawing, save_figure
from .terminal import ledger_block
from .terminal_text import fitted, has_shades, has_unicode, sign
from .trace_wording import headline, scale_of, sums_note
from .wording import number, scale_line, sink_line
from .written_text import spelled

LABELLED = 120
"""Maximum number of labelled features in a picture; of more features, every n-th is labelled."""

LONGEST = 18
"""Maximum length of a feature's label in a picture."""

LABEL, WIDEST, FEW = 24, 4, 5
"""In the terminal: the maximum widths of a label and of a cell, and the number of scores listed per layer."""

SINK = 0.25
"""The share of the absolute relevance from which the first feature is mentioned as a sink."""

NO_SCORE = "#eeeeee"
"""In a picture, the colour of features that a layer has no position for."""


def show_trace(trace: Trace, console: Console | None = None) -> None:
    """Print a trace, one line per feature, or the largest scores of each layer if the terminal has too few colours."""
    console = console or Console()
    trace = displayed(replace(trace, features=tuple(spelled(trace))))
    console.print(Line(headline(trace), style="bold"))
    notes = [sums_note(trace)]
    if has_shades(console):
        notes = [_layers_line(trace), scale_line(scale_of(trace)), _sums_line(trace), *notes]
    for line in _bands(trace, console) if has_shades(console) else _numbers(trace):
        console.print(line)
    explanation = _with_sink(trace)
    for note in (*notes, sink_line(explanation)):
        if note:
            console.print(Line(note, style="dim"))
    for rendered in ledger_block(explanation, console):
        console.print(rendered)


def _with_sink(trace: Trace) -> Explanation:
    """Return the scores of the inputs; a first feature with a large share of them is an attention sink."""
    explanation = trace.explanation()
    sink = Sink.of(0, explanation.features, explanation.scores) if explanation.features else None
    return replace(explanation, sink=sink) if sink is not None and sink.share >= SINK else explanation


@drawing()
def draw_trace(trace: Trace, path: str | Path) -> None:
    """Draw a trace and save it in the format of the file name's extension."""
    from matplotlib.colors import LinearSegmentedColormap

    trace = displayed(replace(trace, features=tuple(spelled(trace))))
    many, rows, scale = len(trace.features), len(trace.layers), scale_of(trace)
    cell = 0.24 if many <= 40 else 9.0 / many
    every = -(-many // LABELLED)
    labels = {i: _short(trace.features[i]) for i in range(0, many, every)}
    figure = _figure(max(4.5, cell * many + 2.0), 0.2 * rows + 1.2 + 0.07 * max(map(len, labels.values())))
    three = [hexadecimal(colour) for colour in (AGAINST, LIGHT, FOR)]
    colours = LinearSegmentedColormap.from_list("for and against", three).with_extremes(bad=NO_SCORE)
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
    axes.set_title(headline(trace), fontsize=8, color=INK, loc="left", weight="bold")
    bar = figure.colorbar(shown, ax=axes, location="bottom", fraction=0.05, aspect=40, shrink=0.5)
    bar.set_ticks([-scale, 0, scale], labels=[f"{number(-scale)} against", "0", f"{number(scale)} for"])
    bar.ax.tick_params(labelsize=6.5, length=0, colors=NOTE)
    bar.outline.set_linewidth(0.3)
    save_figure(figure, path)


def _short(feature: str) -> str:
    """Return a feature shortened to the label of a column."""
    text = " ".join(feature.split()) or repr(feature)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _bands(trace: Trace, console: Console) -> Iterator[Line]:
    """Yield the lines of the heat map: a line per feature, with a cell per layer, in as many bands as fit the width.

    The number at the end of a line is the score at the inputs.
    """
    scale, width = scale_of(trace), console.width
    names = [fitted(shown(feature), min(LABEL, width // 3)) for feature in trace.features]
    values = ["" if score is None else number(score) for score in trace.scores[0]]
    margin, end = max(map(cell_len, names)), max(map(len, (*values, "inputs")))
    room = max(4, width - margin - end - 2)
    across = max(1, min(WIDEST, room // len(trace.layers)))
    labels = [_layer(layer) for layer in trace.layers]
    for first in range(0, len(trace.layers), room // across):
        part = slice(first, first + room // across)
        ruler = _ruler(labels[part], across)
        if first == 0:
            ruler = f"{ruler:<{across * len(labels[part])}} {'inputs':>{end}}"
        yield Line(" " * (margin + 1) + ruler, style="dim", no_wrap=True)
        for i, name in enumerate(names):
            line = Line(set_cell_size(name, margin) + " ", style="dim" if trace.special[i] else "", no_wrap=True)
            line = Line.assemble(line, no_wrap=True)
            for row in trace.scores[part]:
                line.append(*_cell(row[i], scale, across, console))
            if first == 0:
                line.append(f" {values[i]:>{end}}", style="dim")
            yield line


def _layer(name: str) -> str:
    """Return the short name of a layer: its number, or the beginning of its name."""
    return name.rpartition(" ")[2][-4:] if name[-1:].isdigit() else name[:2]


def _ruler(labels: Sequence[str], across: int) -> str:
    """Return the labels of columns, without those that would touch the one before."""
    line = ""
    for i, label in enumerate(labels):
        if len(line) <= i * across - bool(line):
            line = f"{line:<{i * across}}{label}"
    return line


def _layers_line(trace: Trace) -> str:
    """Return what the columns of the heat map are."""
    first, *others = trace.layers
    outputs = f", then the outputs of {others[0]} to {others[-1]}" if others else ""
    return f"columns: {first} ({_layer(first)}){outputs}"


def _sums_line(trace: Trace) -> str:
    sums = ", ".join(f"{_layer(name)} {number(total)}" for name, total in zip(trace.layers, trace.sums, strict=True))
    return f"sums: {sums}"


def _cell(score: float | None, scale: float, across: int, console: Console) -> tuple[str, str]:
    """Return a cell of the heat map: a background, or for small scores a pattern, as the terminal's own is unknown."""
    if score is None:
        return ("·" if has_unicode(console) else ".") * across, "dim"
    style = terminal_style(score, scale)
    if style and " on " not in style:
        return ("░" if has_unicode(console) else ":") * across, style
    return " " * across, style


def _numbers(trace: Trace) -> Iterator[Line]:
    """Yield a line for each layer with its largest scores."""
    margin = max(map(len, trace.layers))
    for layer, scores, total in reversed(list(zip(trace.layers, trace.scores, trace.sums, strict=True))):
        line = Line(f"{layer:<{margin}}  {number(total)} ")
        scored = [(score, name) for score, name in zip(scores, trace.features, strict=True) if score]
        for score, name in sorted(scored, key=lambda pair: -abs(pair[0]))[:FEW]:
            line.append(f" {name.strip()}({number(score)})", style=sign(score))
        yield line
