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
from .evaluation_wording import TITLES, headline, protocol_line, short
from .matplotlib_figures import drawing, new_figure, save_figure
from .svg import embedded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Seven colours that the colour-blind can distinguish, on light and dark pages (Okabe & Ito, the yellow darkened).
COLOURS = ("#d55e00", "#e69f00", "#009e73", "#0072b2", "#56b4e9", "#cc79a7", "#a6761d")
RED, ORANGE, GREEN, BLUE, SKY, PINK, OLIVE = COLOURS
INK, NOTE, GRID, GREY = "#1a1a1a", "#595959", "#dddddd", "#808080"

PAGE_COLOURS = {INK: "currentColor", NOTE: "var(--note)", GRID: "var(--grid)"}
"""Colour in a figure -> CSS value that replaces it on pages, which may be light or dark."""

SOLID, DASHED, DASH_DOT = "solid", (0, (4, 1.4)), (0, (6, 1.5, 1.2, 1.5))
DASHES, DOTS = (DASHED, (0, (8, 2)), (0, (2, 2))), ((0, (1, 1.2)), (0, (1, 2.6)), (0, (1, 1.2, 1, 4)))

# Solid: methods by propagation or gradients; dashed: methods by attention. So 7 colours suffice for 14 methods.
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
"""Method of the paper -> line width."""

PANELS = (
    ("activation", "auac", "features shown, highest scores first", "probability of the target"),
    ("pruning", "au_mse", "features removed, smallest |scores| first", "squared change of the logits"),
)
PADS: dict[str, Any] = {"w_pad": 0.06, "h_pad": 0.07}
"""The margins of a figure, in inches."""

POINTS = 250
"""Maximum number of points in a scatter plot; more would look the same and make the file larger."""


@drawing()
def draw_curves(evaluation: Evaluation, path: str | Path) -> None:
    """Draw the activation and the pruning curve of every method, with 95 % bands, and save them."""
    evaluation = displayed(evaluation)
    figure = _curves(evaluation)
    _caption(figure, curves_caption(evaluation))
    save_figure(figure, path)


@drawing()
def draw_conservation(evaluation: Evaluation, path: str | Path) -> None:
    """Draw, for every method, the sum of the scores against the output, a point for each sample, and save it."""
    evaluation = displayed(evaluation)
    figure = _scatters(evaluation)
    _caption(figure, conservation_caption(evaluation))
    save_figure(figure, path)


@drawing()
def curves_svg(evaluation: Evaluation, *, narrow: bool = False) -> Markup:
    """Return the figure of `draw_curves` as inline SVG, without its caption."""
    label = "Activation and pruning curves of every method"
    return embedded(_curves(displayed(evaluation), narrow), label, _prefix("curves", narrow), PAGE_COLOURS)


@drawing()
def conservation_svg(evaluation: Evaluation, *, narrow: bool = False) -> Markup:
    """Return the figure of `draw_conservation` as inline SVG, without its caption."""
    label = "Sum of the scores against the output for every method"
    return embedded(_scatters(displayed(evaluation), narrow), label, _prefix("sums", narrow), PAGE_COLOURS)


def curves_caption(evaluation: Evaluation) -> str:
    """Return the caption: what the curves show, model and data."""
    return (
        "First: the probability of the target as features are added; higher is better. Second: the squared change of "
        "the logits as features are removed; lower is better. Means with 95 % bands, ordered by area. "
        f"{headline(evaluation)} · {protocol_line(evaluation)}."
    )


def conservation_caption(evaluation: Evaluation) -> str:
    """Return the caption: what the points show, model and data."""
    most = max((len(result.conservation.outputs) for result in evaluation.methods), default=0)
    drawn = f" ({POINTS} of {most} are drawn)" if most > POINTS else ""
    scales_differ = not all(map(_on_scale, evaluation.methods))
    own = " A panel whose sums have another scale than the outputs has its own y axis, marked “own y axis”."
    return (
        f"Sum of the scores against the explained output, a point for each sample{drawn}; on the line both are equal."
        f"{own if scales_differ else ''} {headline(evaluation)} · {protocol_line(evaluation)}."
    )


def _prefix(name: str, narrow: bool) -> str:
    """Return the prefix of the ids in a drawing, which must be unique on a page."""
    return f"{name}-narrow-" if narrow else f"{name}-"


def _figure(width: float, height: float) -> Figure:
    figure = new_figure(width, height)
    figure.set_layout_engine("constrained", **PADS)
    return figure


def _caption(figure: Figure, text: str) -> None:
    """Write a caption below a figure, and increase the figure's height accordingly."""
    width, height = figure.get_size_inches()
    lines = fill(text.replace(" · ", "\N{NO-BREAK SPACE}· "), round(width * 19))
    more = 0.14 * (lines.count("\n") + 1) + 0.12
    figure.set_size_inches(width, height + more)
    figure.set_layout_engine("constrained", rect=(0, more / (height + more), 1, height / (height + more)), **PADS)
    figure.text(0.1 / width, 0.06 / height, lines, fontsize=7, color=NOTE, va="bottom", linespacing=1.35)


def _lines(methods: Sequence[MethodResult]) -> dict[str, dict[str, Any]]:
    """Return method -> line style: fixed for known methods, different for all."""
    taken = [STYLES.get(result.method) for result in methods]
    every = [(colour, dashes) for dashes in (DASH_DOT, DASHED, SOLID) for colour in COLOURS]
    free = [style for style in every if style not in taken]
    looks: dict[str, dict[str, Any]] = {}
    greys = blacks = others = 0
    for result in methods:
        colour, dashes = STYLES.get(result.method, (INK, SOLID))
        width, over = PAPER.get(result.method, 1.1), 3.0 + (result.method in PAPER)
        if result.reference:
            colour, dashes, blacks, over = INK, DOTS[blacks % len(DOTS)], blacks + 1, 5.0
        elif result.is_random:
            colour, dashes, greys, over = GREY, DASHES[greys % len(DASHES)], greys + 1, 2.5
        elif result.method not in STYLES:
            (colour, dashes), others = free[others % len(free)], others + 1
        looks[result.method] = {"color": colour, "linestyle": dashes, "linewidth": width, "zorder": over}
    return looks


def _curves(evaluation: Evaluation, narrow: bool = False) -> Figure:
    height = max(2.8 if narrow else 3.4, 0.18 * len(evaluation.methods) + 0.9)
    figure = _figure(4.0, 2 * height) if narrow else _figure(8.6, height)
    looks = _lines(evaluation.methods)
    for axes, (name, metric, x, y) in zip(figure.subplots(*((2, 1) if narrow else (1, 2))), PANELS, strict=True):
        _dress(axes, x, y)
        order = sorted(
            (result for result in evaluation.methods if name in result.curves),
            key=lambda result: float(getattr(result, metric).mean),
            reverse=True,  # in both panels the legend has the order of the lines: the highest first
        )
        labels = [f"{short(getattr(result, metric).mean)}\N{EN SPACE}{result.method}" for result in order]
        _plot(axes, name, order, looks, labels)
        _legend(axes, f"{TITLES[metric]}, {'higher' if HIGHER_IS_BETTER[metric] else 'lower'} is better", order)
    return figure


def _plot(
    axes: Axes, name: str, methods: Sequence[MethodResult], looks: Mapping[str, dict[str, Any]], labels: Sequence[str]
) -> None:
    """Plot one kind of curve ("activation" or "pruning") of several methods, with 95 % bands."""
    for result, label in zip(methods, labels, strict=True):
        curve, look = result.curves[name], looks[result.method]
        alpha = 0.2 if result.method in PAPER else 0.08
        band = {"color": look["color"], "alpha": alpha, "linewidth": 0, "zorder": look["zorder"] - 2}
        axes.fill_between(curve.fractions, curve.low, curve.high, **band)
        axes.plot(curve.fractions, curve.mean, label=label, **look)
    axes.set(xlim=(0, 1), xticks=[0, 0.25, 0.5, 0.75, 1], xticklabels=["0", "25 %", "50 %", "75 %", "100 %"])
    if name == "pruning":
        axes.set_ylim(bottom=0)


def _legend(axes: Axes, title: str, order: Sequence[MethodResult]) -> None:
    """Put the legend beside the panel, where it does not cover lines."""
    if not order:
        return
    legend = axes.legend(
        title=title, loc="upper left", bbox_to_anchor=(1.0, 1.03), frameon=False, fontsize=7.5, title_fontsize=7.5,
        handlelength=2.8, labelspacing=0.36, borderaxespad=0.4, alignment="left",
    )  # fmt: skip
    legend.get_title().set_color(INK)
    for text, result in zip(legend.get_texts(), order, strict=True):
        text.set(color=INK, weight="bold" if result.method in PAPER else "normal")


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
    """Return whether the sums fit on the axis of the outputs: neither much smaller nor much larger."""
    conservation = method.conservation
    if method.is_random or not conservation.sums:
        return False
    outputs, sums = (max(values) - min(values) for values in (conservation.outputs, conservation.sums))
    both = max(*conservation.outputs, *conservation.sums) - min(*conservation.outputs, *conservation.sums)
    return sums >= outputs / 20 and both <= 4 * outputs


def _scatters(evaluation: Evaluation, narrow: bool = False) -> Figure:
    methods = evaluation.methods
    across = min(2 if narrow else 4, max(2, len(methods)))
    down = max(1, ceil(len(methods) / across))
    figure = _figure((1.9 if narrow else 2.15) * across, (2.15 if narrow else 2.4) * down + 0.35)
    seen = [result.conservation for result in methods if _on_scale(result)] or [
        result.conservation for result in methods
    ]
    values = [value for conservation in seen for value in (*conservation.outputs, *conservation.sums)] or [0.0, 1.0]
    room = 0.05 * (max(values) - min(values)) or 1.0
    limits = (min(values) - room, max(values) + room)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    looks = _lines(methods)
    for i, (axes, result) in enumerate(zip(panels, methods, strict=False)):
        last = i + across >= len(methods)
        _dress(axes, "explained output" if last else "", "sum of the scores" if i % across == 0 else "")
        _scatter(axes, result, limits, looks[result.method]["color"])
    for axes in panels[len(methods) :]:
        axes.axis("off")
    return figure


def _scatter(axes: Axes, result: MethodResult, limits: tuple[float, float], colour: str) -> None:
    _points(axes, result, colour, result.method)
    axes.set_xlim(limits)
    if _on_scale(result):
        axes.axline((limits[0], limits[0]), slope=1, color=INK, linewidth=0.8, zorder=1)
        axes.set_ylim(limits)
        return
    conservation = result.conservation
    low, high = axes.get_ylim()
    if conservation.correlation is None and conservation.sums:  # the sums vary by rounding only: draw them as constant
        low, high = conservation.sums[0] - 1, conservation.sums[0] + 1
    axes.set_ylim(low - 0.1 * (high - low), high)  # space for the label
    axes.text(0.97, 0.03, "own y axis", transform=axes.transAxes, fontsize=7, color=NOTE, ha="right", style="italic")


def _points(axes: Axes, result: MethodResult, colour: str, title: str) -> None:
    """Plot a point for each sample in a square panel, with correlation and slope above."""
    from matplotlib.ticker import MaxNLocator

    conservation = result.conservation
    axes.set_box_aspect(1)
    axes.set_title(title, fontsize=9, color=INK, pad=16, weight="bold" if result.method in PAPER else None)
    numbers = f"correlation {short(conservation.correlation)} · slope {short(conservation.slope)}"
    if conservation.correlation is None:
        numbers = "the sums do not vary"
    axes.text(0.5, 1.03, numbers, transform=axes.transAxes, fontsize=7, color=NOTE, ha="center", va="bottom")
    every = max(1.0, len(conservation.sums) / POINTS)
    drawn = [int(i * every) for i in range(min(POINTS, len(conservation.sums)))]
    points = [conservation.outputs[i] for i in drawn], [conservation.sums[i] for i in drawn]
    axes.plot(*points, "o", markersize=2.4, color=colour, alpha=0.6, markeredgewidth=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4))
