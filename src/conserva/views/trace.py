"""A trace as a heat map, in the terminal and as a picture: layers from bottom to top, features from left to right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text as Line

from .._util.text import displayed
from ..results.trace import Trace
from .colours import AGAINST, FOR, LIGHT, hexadecimal, shade
from .curves import INK, NOTE, _figure
from .matplotlib_figures import drawing, save_figure
from .terminal import ledger_lines
from .terminal_text import has_shades, sign
from .trace_wording import headline, scale_of, sums_note
from .wording import ledger_line, number, scale_line

LABELLED = 120
"""Maximum number of labelled features in a picture; of more features, every n-th is labelled."""

LONGEST = 18
"""Maximum length of a feature's label in a picture."""

SUM, HIGH, FEW = 10, 12, 5
"""In the terminal: the width of the sum column, the maximum length of a label, and the scores listed per layer."""

NO_SCORE = "#eeeeee"
"""In a picture, the colour of features that a layer has no position for."""


def show_trace(trace: Trace, console: Console | None = None) -> None:
    """Print a trace, one line per layer: coloured cells, or the largest scores if the terminal has too few colours."""
    console = console or Console()
    trace = displayed(trace)
    explanation = trace.explanation()
    console.print(Line(headline(trace), style="bold"))
    for line in _bands(trace, console.width) if has_shades(console) else _numbers(trace):
        console.print(line)
    if has_shades(console):
        console.print(Line(scale_line(scale_of(trace)), style="dim"))
    console.print(Line(sums_note(trace), style="dim"))
    if explanation.ledger is not None:
        pass
    console.print(Line(ledger_line(explanation), style="dim"))


@drawing()
def draw_trace(trace: Trace, path: str | Path) -> None:
    """Draw a trace and save it in the format of the file name's extension."""
    from matplotlib.colors import LinearSegmentedColormap

    trace = displayed(trace)
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


def _bands(trace: Trace, width: int) -> Iterator[Line]:
    """Yield the lines of the heat map, broken into bands of features that fit the width."""
    scale, margin = scale_of(trace), max(map(len, trace.layers)) + 1
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
        # Labels are vertical, one letter per line.
        names = ["".join(feature.split())[:HIGH] for feature in trace.features[part]]
        for i in range(max(map(len, names))):
            letters = "".join(set_cell_size(name[i : i + 1], across) for name in names)
            yield Line(" " * margin + letters, style="dim", no_wrap=True)


def _cell(score: float | None, scale: float, across: int) -> tuple[str, str]:
    return ("·" * across, "dim") if score is None else (" " * across, f"on {hexadecimal(shade(score, scale))}")


def _numbers(trace: Trace) -> Iterator[Line]:
    """Yield a line for each layer with its largest scores."""
    margin = max(map(len, trace.layers))
    for layer, scores, total in reversed(list(zip(trace.layers, trace.scores, trace.sums, strict=True))):
        line = Line(f"{layer:>{margin}} {number(total)} ")
        scored = [(score, name) for score, name in zip(scores, trace.features, strict=True) if score]
        for score, name in sorted(scored, key=lambda pair: -abs(pair[0]))[:FEW]:
            line.append(f" {name.strip()}({number(score)})", style=sign(score))
        yield line
