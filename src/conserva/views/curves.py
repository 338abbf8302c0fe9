"""The figures of an evaluation: curves (Ali et al. 2022, figure 4), and sums against outputs (figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from .._util.text import displayed
from ..evaluation.result import HIGHER_IS_BETTER, Evaluation, MethodResult
from .evaluation_terminal import TITLES, headline, is_random, protocol_line, short
from .matplotlib_figures import drawing, new_figure, save_figure
from .svg import embedded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Seven colours that stay apart for the colour-blind and on both grounds (Okabe & Ito, the yellow darkened).
COLOURS = ("#d55e00", "#e69f00", "#009e73", "#0072b2", "#56b4e9", "#cc79a7", "#a6761d")
RED, ORANGE, GREEN, BLUE, SKY, PINK, OLIVE = COLOURS
INK, NOTE, GRID, GREY = "#1a1a1a", "#595959", "#dddddd", "#808080"

PAGE_COLOURS = {INK: "currentColor", NOTE: "var(--note)", GRID: "var(--grid)"}
"""Colours of figures -> what a page puts in their place, which suits its light or dark ground."""

SOLID, DASHED, DASH_DOT = "solid", (0, (4, 1.4)), (0, (6, 1.5, 1.2, 1.5))
DASHES, DOTS = (DASHED, (0, (8, 2)), (0, (2, 2))), ((0, (1, 1.2)), (0, (1, 2.6)), (0, (1, 1.2, 1, 4)))

# Solid lines propagate or differentiate, dashed ones look at attention: 7 colours tell 14 methods.
STYLES: dict[str, tuple[str, Any]] = {
    "ah+ln": (RED, SOLID),
    "ah": (ORANGE, SOLID),
    "ln": (PINK, SOLID),
    "exact": (BLUE, SOLID),
    "attnlrp": (GREEN, SOLID),
    "gi": (SKY, SOLID),
    "ig": (OLIVE, SOLID),
    "chefer": (RED, DASHED),
    "partial-lrp": (ORANGE, DASHED),
    "attn-gradcam": (PINK, DASHED),
    "gae": (BLUE, DASHED),
    "rollout": (GREEN, DASHED),
    "a-flow": (SKY, DASHED),
    "a-last": (OLIVE, DASHED),
}
PAPER = {"ah": 1.7, "ln": 1.7, "ah+ln": 2.4}
"""The methods of the paper, and how wide their lines are."""

PANELS = (
    ("activation", "auac", "features shown, highest scores first", "probability of the target"),
    ("pruning", "au_mse", "features removed, smallest |scores| first", "squared change of the logits"),
)
PADS: dict[str, Any] = {"w_pad": 0.06, "h_pad": 0.07}
"""The margins of a figure, in inches."""

POINTS = 250
"""A scatter of more points looks the same, and makes a page heavy."""


@drawing()
def draw_curves(evaluation: Evaluation, path: str | Path) -> None:
    """Draw the activation and the pruning curve of every method, with 95 % bands, and save them."""
    evaluation = displayed(evaluation)
    figure = _curves(evaluation)
    _caption(figure, curves_caption(evaluation))
    save_figure(figure, path)


@drawing()
def draw_conservation(evaluation: Evaluation, path: str | Path) -> None:
    """Draw for every method the sum of its scores against the output, a point for each sample, and save it."""
    evaluation = displayed(evaluation)
    figure = _scatters(evaluation)
    _caption(figure, conservation_caption(evaluation))
    save_figure(figure, path)


@drawing()
def curves_svg(evaluation: Evaluation, prefix: str = "curves-") -> Markup:
    """Return the figure of `draw_curves` as SVG to stand in a page; the caption is the page's to write."""
    return embedded(
        _curves(displayed(evaluation)), "Activation and pruning curves of every method", prefix, PAGE_COLOURS
    )


@drawing()
def conservation_svg(evaluation: Evaluation, prefix: str = "sums-") -> Markup:
    """Return the figure of `draw_conservation` as SVG to stand in a page, likewise."""
    return embedded(
        _scatters(displayed(evaluation)), "Sum of the scores against the output for every method", prefix, PAGE_COLOURS
    )


def curves_caption(evaluation: Evaluation) -> str:
    """Say what the curves are, of which model, on which data."""
    return (
        "Left: how the probability of the target grows as features are shown; the higher, the better. Right: how far "
        "the logits move as features are removed; the lower, the better. Means with 95 % bands, ordered by area. "
        f"{headline(evaluation)} · {protocol_line(evaluation)}."
    )


def conservation_caption(evaluation: Evaluation) -> str:
    """Say what the points are, of which model, on which data."""
    most = max((len(one.conservation.outputs) for one in evaluation.methods), default=0)
    drawn = f" ({POINTS} of {most} are drawn)" if most > POINTS else ""
    apart = not all(map(_on_scale, evaluation.methods))
    own = " Where the sums live on another scale than the outputs, a panel has its own y axis, and says so."
    return (
        f"Sum of the scores against the explained output, a point for each sample{drawn}; on the line both agree."
        f"{own if apart else ''} {headline(evaluation)} · {protocol_line(evaluation)}."
    )


def _figure(width: float, height: float) -> Figure:
    figure = new_figure(width, height)
    figure.set_layout_engine("constrained", **PADS)
    return figure


def _caption(figure: Figure, text: str) -> None:
    """Write small text below a figure, and make the figure higher by as much as it needs."""
    width, height = figure.get_size_inches()
    lines = fill(text.replace(" · ", "\N{NO-BREAK SPACE}· "), round(width * 19))
    more = 0.14 * (lines.count("\n") + 1) + 0.12
    figure.set_size_inches(width, height + more)
    figure.set_layout_engine("constrained", rect=(0, more / (height + more), 1, height / (height + more)), **PADS)
    figure.text(0.1 / width, 0.06 / height, lines, fontsize=7, color=NOTE, va="bottom", linespacing=1.35)


def _lines(methods: Sequence[MethodResult]) -> dict[str, dict[str, Any]]:
    """Return how each method's line looks: a known method always alike, no two alike."""
    taken = [STYLES.get(one.method) for one in methods]
    every = [(colour, dashes) for dashes in (DASH_DOT, DASHED, SOLID) for colour in COLOURS]
    free = [style for style in every if style not in taken]
    found: dict[str, dict[str, Any]] = {}
    greys = blacks = others = 0
    for one in methods:
        colour, dashes = STYLES.get(one.method, (INK, SOLID))
        width, over = PAPER.get(one.method, 1.1), 3.0 + (one.method in PAPER)
        if one.reference:
            colour, dashes, blacks, over = INK, DOTS[blacks % len(DOTS)], blacks + 1, 5.0
        elif is_random(one.method):
            colour, dashes, greys, over = GREY, DASHES[greys % len(DASHES)], greys + 1, 2.5
        elif one.method not in STYLES:
            (colour, dashes), others = free[others % len(free)], others + 1
        found[one.method] = {"color": colour, "linestyle": dashes, "linewidth": width, "zorder": over}
    return found


def _curves(evaluation: Evaluation) -> Figure:
    figure = _figure(8.6, max(3.4, 0.18 * len(evaluation.methods) + 0.9))
    looks = _lines(evaluation.methods)
    for axes, (name, metric, x, y) in zip(figure.subplots(1, 2), PANELS, strict=True):
        _dress(axes, x, y)
        order = sorted(
            (one for one in evaluation.methods if name in one.curves),
            key=lambda one: float(getattr(one, metric).mean),
            reverse=True,  # in both panels the key runs as the lines lie: the highest first
        )
        labels = [f"{short(getattr(one, metric).mean)}\N{EN SPACE}{one.method}" for one in order]
        _plot(axes, name, order, looks, labels)
        _legend(axes, f"{TITLES[metric]}, {'higher' if HIGHER_IS_BETTER[metric] else 'lower'} is better", order)
    return figure


def _plot(
    axes: Axes, name: str, methods: Sequence[MethodResult], looks: Mapping[str, dict[str, Any]], labels: Sequence[str]
) -> None:
    """Draw one kind of curve of several methods, with 95 % bands."""
    for one, label in zip(methods, labels, strict=True):
        curve, look = one.curves[name], looks[one.method]
        alpha = 0.2 if one.method in PAPER else 0.08
        band = {"color": look["color"], "alpha": alpha, "linewidth": 0, "zorder": look["zorder"] - 2}
        axes.fill_between(curve.fractions, curve.low, curve.high, **band)
        axes.plot(curve.fractions, curve.mean, label=label, **look)
    axes.set(xlim=(0, 1), xticks=[0, 0.25, 0.5, 0.75, 1], xticklabels=["0", "25 %", "50 %", "75 %", "100 %"])
    if name == "pruning":
        axes.set_ylim(bottom=0)


def _legend(axes: Axes, title: str, order: Sequence[MethodResult]) -> None:
    """Put the key beside the panel, where it covers no line."""
    if not order:
        return
    legend = axes.legend(
        title=title, loc="upper left", bbox_to_anchor=(1.0, 1.03), frameon=False, fontsize=7.5, title_fontsize=7.5,
        handlelength=2.8, labelspacing=0.36, borderaxespad=0.4, alignment="left",
    )  # fmt: skip
    legend.get_title().set_color(INK)
    for text, one in zip(legend.get_texts(), order, strict=True):
        text.set(color=INK, weight="bold" if one.method in PAPER else "normal")


def _dress(axes: Axes, x: str, y: str) -> None:
    axes.set_facecolor("none")
    axes.set_xlabel(x, fontsize=8, color=INK)
    axes.set_ylabel(y, fontsize=8, color=INK)
    axes.tick_params(labelsize=7.5, colors=INK, width=0.6, length=2.5)
    axes.grid(color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=INK, linewidth=0.6)


def _on_scale(method: MethodResult) -> bool:
    """Return whether sums can be seen on the axis of the outputs: neither vanishing there, nor making them vanish."""
    one = method.conservation
    if is_random(method.method) or not one.sums:
        return False
    outputs, sums = (max(values) - min(values) for values in (one.outputs, one.sums))
    both = max(*one.outputs, *one.sums) - min(*one.outputs, *one.sums)
    return sums >= outputs / 20 and both <= 4 * outputs


def _scatters(evaluation: Evaluation) -> Figure:
    methods = evaluation.methods
    across = min(4, max(2, len(methods)))
    down = max(1, ceil(len(methods) / across))
    figure = _figure(2.15 * across, 2.4 * down + 0.35)
    seen = [one.conservation for one in methods if _on_scale(one)] or [one.conservation for one in methods]
    values = [value for one in seen for value in (*one.outputs, *one.sums)] or [0.0, 1.0]
    room = 0.05 * (max(values) - min(values)) or 1.0
    limits = (min(values) - room, max(values) + room)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    looks = _lines(methods)
    for i, (axes, one) in enumerate(zip(panels, methods, strict=False)):
        last = i + across >= len(methods)
        _dress(axes, "explained output" if last else "", "sum of the scores" if i % across == 0 else "")
        _scatter(axes, one, limits, looks[one.method]["color"])
    for axes in panels[len(methods) :]:
        axes.axis("off")
    return figure


def _scatter(axes: Axes, one: MethodResult, limits: tuple[float, float], colour: str) -> None:
    _points(axes, one, colour, one.method)
    axes.set_xlim(limits)
    if _on_scale(one):
        axes.axline((limits[0], limits[0]), slope=1, color=INK, linewidth=0.8, zorder=1)
        axes.set_ylim(limits)
        return
    books = one.conservation
    low, high = axes.get_ylim()
    if books.correlation is None and books.sums:  # what varies is rounding: seen from where it is flat
        low, high = books.sums[0] - 1, books.sums[0] + 1
    axes.set_ylim(low - 0.1 * (high - low), high)  # room for the words
    axes.text(0.97, 0.03, "own y axis", transform=axes.transAxes, fontsize=7, color=NOTE, ha="right", style="italic")


def _points(axes: Axes, one: MethodResult, colour: str, title: str) -> None:
    """Draw a point for each sample in a square, with its correlation and slope above."""
    from matplotlib.ticker import MaxNLocator

    books = one.conservation
    axes.set_box_aspect(1)
    axes.set_title(title, fontsize=9, color=INK, pad=16, weight="bold" if one.method in PAPER else None)
    numbers = f"correlation {short(books.correlation)} · slope {short(books.slope)}"
    if books.correlation is None:
        numbers = "the sums do not vary"
    axes.text(0.5, 1.03, numbers, transform=axes.transAxes, fontsize=7, color=NOTE, ha="center", va="bottom")
    every = max(1.0, len(books.sums) / POINTS)
    drawn = [int(i * every) for i in range(min(POINTS, len(books.sums)))]
    points = [books.outputs[i] for i in drawn], [books.sums[i] for i in drawn]
    axes.plot(*points, "o", markersize=2.4, color=colour, alpha=0.6, markeredgewidth=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4))
