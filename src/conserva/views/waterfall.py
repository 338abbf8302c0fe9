"""The figures of an audit: leaks by layer, one norm (Ali et al. 2022, figure 2), sums against outputs (figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from .._util.text import displayed
from ..auditing.result import Audit, Norm
from ..errors import Error
from .audit_wording import TWICE, direction, module_label, require_audits, samples, subject, untraced
from .colours import AGAINST, FOR, LEDGER, hexadecimal
from .curves import INK, NOTE, OLIVE, PAGE_COLOURS, POINTS, SOLID, STYLES, _caption, _dress, _figure, _prefix
from .matplotlib_figures import drawing, save_figure
from .svg import embedded
from .wording import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3
"""Maximum number of panels side by side; with more, a page would shrink the text too much."""

ROWS, LOW, HIGH = 24, 0.15, 0.24
"""Up to `ROWS` rows, a row of a waterfall is `HIGH` inches high, with more rows `LOW` inches."""

LABELS = 44
"""Maximum number of labelled rows; of more rows, every n-th is labelled."""

LOOKS: dict[str, dict[str, Any]] = {
    "output": {"facecolor": INK, "linewidth": 0},
    "lost": {"facecolor": LEDGER["gap"], "edgecolor": LEDGER["gap"], "linewidth": 0.6},
    "counted twice": {"facecolor": "none", "edgecolor": LEDGER["gap"], "linewidth": 0.6, "hatch": "//////"},
    "constants": {"facecolor": LEDGER["biases"], "edgecolor": LEDGER["biases"], "linewidth": 0.6},
    "inputs": {"facecolor": LEDGER["inputs"], "linewidth": 0},
}
"""Part of a waterfall -> its style, in the ledger's colours; hatching marks relevance that is counted twice."""

LEAST = 0.003
"""Bars shorter than this share of the axis are not drawn."""

UNTRACED = "in no component"


@drawing()
def draw_waterfall(audits: Sequence[Audit], path: str | Path) -> None:
    """Draw the relevance from the output through the layers to the inputs, a panel for each audit, and save it."""
    audits = displayed(audits)
    figure = _waterfall(audits)
    _caption(figure, waterfall_caption(audits))
    save_figure(figure, path)


@drawing()
def draw_norm(audit: Audit, module: str, path: str | Path) -> None:
    """Draw the relevance of each position at the output and at the input of one norm, and save it."""
    audit, module = displayed((audit, module))
    figure = _norm(audit, module)
    _caption(figure, norm_caption(audit, module))
    save_figure(figure, path)


@drawing()
def draw_scatter(audits: Sequence[Audit], path: str | Path) -> None:
    """Draw the sum of the inputs' relevance against the output, a panel for each audit, and save it."""
    audits = displayed(audits)
    figure = _scatters(audits)
    _caption(figure, scatter_caption(audits))
    save_figure(figure, path)


@drawing()
def waterfall_svg(audits: Sequence[Audit], *, narrow: bool = False) -> Markup:
    """Return the figure of `draw_waterfall` as inline SVG, without its caption."""
    label = "Relevance of constants and leaks of each layer, from output to inputs"
    return _in_page(_waterfall(displayed(audits), narrow), label, _prefix("waterfall", narrow))


@drawing()
def norm_svg(audit: Audit, module: str, *, narrow: bool = False) -> Markup:
    """Return the figure of `draw_norm` as inline SVG, without its caption."""
    label = "Relevance of each position at the output and at the input of a norm"
    return _in_page(_norm(*displayed((audit, module)), narrow), label, _prefix("norm", narrow))


@drawing()
def scatter_svg(audits: Sequence[Audit], *, narrow: bool = False) -> Markup:
    """Return the figure of `draw_scatter` as inline SVG, without its caption."""
    return _in_page(
        _scatters(displayed(audits), narrow), "Sum of the inputs' relevance against the output", _prefix("sums", narrow)
    )


def waterfall_caption(audits: Sequence[Audit]) -> str:
    """Return the caption: what bars and numbers show, model and rule sets."""
    limits_differ = len({limits for _, limits in _steps_and_limits(audits)}) > 1
    own = " Each rule set has its own axis, because their ranges differ much."
    return (
        "From the output down to the inputs: the relevance that each layer loses, counts twice, and attributes to its "
        f"constants (biases, positions). Numbers: the output, the leak of each layer ({TWICE}), and the inputs."
        f"{own if limits_differ else ''} {_of(audits)} · means over {samples(audits[0])}."
    )


def norm_caption(audit: Audit, module: str) -> str:
    """Return the caption: what the bars show, norm, model and rule set."""
    return (
        f"Relevance of each position of the first sample at the output of {module_label(module)}, where relevance "
        "enters in the backward pass, and at its input, where it leaves. Red for, blue against the target. "
        f"{_of([audit])}."
    )


def scatter_caption(audits: Sequence[Audit]) -> str:
    """Return the caption: what the points show, model and rule sets."""
    most = max(len(audit.ledgers) for audit in audits)
    drawn = f" ({POINTS} of {most} are drawn)" if most > POINTS else ""
    return (
        f"Sum of the inputs' relevance against the explained output, a point for each sample{drawn}. On the line the "
        f"inputs get the whole output; elsewhere the difference belongs to constants or leaks. {_of(audits)}."
    )


def norm_of(audit: Audit, module: str) -> Norm:
    """Return the norm of a module; raise `Error` unless the audit has its relevance at each position."""
    drawable = [norm for norm in audit.norms if norm.before and norm.after]
    for norm in drawable:
        if norm.module == module:
            return norm
    known = ", ".join(repr(norm.module) for norm in drawable) or "none, it has no relevance by position"
    raise Error(f"module={module!r} is not a norm that can be drawn; norms of this audit: {known}.")


def _of(audits: Sequence[Audit]) -> str:
    first, word = audits[0], "rules" if len(audits) == 1 else "rule sets"
    return f"{subject(first)} · {word} {', '.join(audit.rules for audit in audits)}"


def _in_page(figure: Figure, label: str, prefix: str) -> Markup:
    """Return a figure as inline SVG; the page sets the grey of the inputs, which depends on its background."""
    grey = LEDGER["inputs"]
    return embedded(figure, label, prefix, {**PAGE_COLOURS, grey: f"var(--inputs,{grey})"})


# The waterfall


@dataclass(frozen=True)
class LayerStep:
    """The relevance that one layer loses, counts twice, and attributes to constants."""

    layer: str
    lost: float = 0.0
    twice: float = 0.0
    constants: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        return {"lost": -self.lost, "counted twice": -self.twice, "constants": -self.constants}


def steps(audit: Audit) -> list[LayerStep]:
    """Return the layers from the output down; losses and double counts are separate, so that they do not cancel."""
    by_layer: dict[str, LayerStep] = {}
    sign = direction(audit)
    for component in reversed(audit.components):
        so_far = by_layer.get(component.layer, LayerStep(component.layer))
        lost, twice = sign * max(sign * component.leak, 0.0), sign * min(sign * component.leak, 0.0)
        by_layer[component.layer] = LayerStep(
            component.layer, so_far.lost + lost, so_far.twice + twice, so_far.constants + component.constants
        )
    if rest := untraced(audit):
        by_layer[UNTRACED] = LayerStep(UNTRACED, sign * max(sign * rest, 0.0), sign * min(sign * rest, 0.0))
    return list(by_layer.values())


def short_module_names(names: Sequence[str]) -> list[str]:
    """Return the shortest endings of module names that are unique, such as `layer.3` and `pooler`."""
    for count in range(1, 1 + max(name.count(".") + 1 for name in names)):
        shortened = []
        for name in names:
            parts = name.split(".")
            shortened.append(".".join(parts[-(count + parts[-1].isdigit()) :]))
        if len(set(shortened)) == len(set(names)):
            return shortened
    return list(names)


def _steps_and_limits(audits: Sequence[Audit]) -> list[tuple[list[LayerStep], tuple[float, float]]]:
    """Return the steps of each audit and the limits of its axis, which are shared unless the ranges differ too much."""
    steps_and_limits = []
    for audit in audits:
        levels, level = [0.0, audit.output, audit.ledger.inputs], audit.output
        for change in (part for step in steps(audit) for part in step.parts.values()):
            level += change
            levels.append(level)
        steps_and_limits.append((steps(audit), (min(levels), max(levels))))
    widths = [high - low for _, (low, high) in steps_and_limits]
    if max(widths) > 6 * min(widths):
        return steps_and_limits
    shared = min(low for _, (low, _) in steps_and_limits), max(high for _, (_, high) in steps_and_limits)
    return [(path, shared) for path, _ in steps_and_limits]


def _waterfall(audits: Sequence[Audit], narrow: bool = False) -> Figure:
    paths = _steps_and_limits(require_audits(audits))
    layers = list(dict.fromkeys(step.layer for path, _ in paths for step in path))
    labels = ["output", *short_module_names(layers), "inputs"]
    across = 1 if narrow else min(ACROSS, len(audits))
    down = ceil(len(audits) / across)
    height = len(labels) * (HIGH if len(labels) <= ROWS else LOW) + 1.0
    width = 3.7 if narrow else 0.9 + 2.6 * across + (1.4 if across == 1 else 0)
    figure = _figure(width, height * down + 0.3)
    panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    every = ceil(len(labels) / LABELS)
    for i, (axes, audit, (path, limits)) in enumerate(zip(panels, audits, paths, strict=False)):
        _dress(axes, "relevance" if i + across >= len(audits) else "", "")
        _panel(axes, audit, path, layers, limits, every)
    last = len(labels) - 1
    shown = [label if i % every == 0 or i == last else "" for i, label in enumerate(labels)]
    panels[0].set_yticks(range(len(labels)), shown)
    panels[0].set_ylim(last + 0.6, -0.6)
    for axes in panels[len(audits) :]:
        axes.axis("off")
    _add_legend(figure, 3 if narrow else len(LOOKS))
    return figure


def _add_legend(figure: Figure, columns: int) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(label=name, **look) for name, look in LOOKS.items()]
    figure.legend(
        handles=patches, loc="outside upper center", ncols=columns, frameon=False, fontsize=7.5, labelcolor=INK,
        handlelength=1.2, handleheight=0.9, columnspacing=1.6,
    )  # fmt: skip


def _panel(
    axes: Axes, audit: Audit, path: Sequence[LayerStep], layers: Sequence[str], limits: tuple[float, float], every: int
) -> None:
    from matplotlib.ticker import MaxNLocator

    reach, last = limits[1] - limits[0] or 1.0, len(layers) + 1
    _heading(axes, audit.rules, f"gap {number(audit.ledger.gap)}")
    axes.barh([0, last], [audit.output, audit.ledger.inputs], height=0.62, zorder=3, color=[INK, LEDGER["inputs"]])
    _add_number(axes, 0, audit.output, "bold")
    _add_number(axes, last, audit.ledger.inputs, "bold")
    level, above, lines = audit.output, 0.0, []
    for step in path:
        row = layers.index(step.layer) + 1
        drawn = {name: change for name, change in step.parts.items() if abs(change) > LEAST * reach}
        lane = 0.72 / max(1, len(drawn))
        for i, (name, change) in enumerate(drawn.items()):
            y = row - 0.36 + lane * (i + 0.5)
            axes.barh(y, change, left=level, height=0.86 * lane, zorder=3, **LOOKS[name])
            lines.append((level, above, y))
            level, above = level + change, y
        hidden = sum(step.parts.values()) - sum(drawn.values())
        if hidden:  # parts too small to be drawn still count
            lines.append((level, above, float(row)))
            level, above = level + hidden, max(above, float(row))
        if row % every == 0:
            _add_number(axes, row, step.lost + step.twice)
    lines.append((level, above, float(last)))
    axes.vlines(*zip(*lines, strict=True), color=NOTE, linewidth=0.7, zorder=2)
    axes.axvline(0, color=INK, linewidth=0.6, zorder=1)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.set_xlim(limits[0] - 0.04 * reach, limits[1] + 0.04 * reach)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _add_number(axes: Axes, row: int, value: float, weight: str = "normal") -> None:
    """Write a number beside a row; rounding errors become 0."""
    text = number(value) if abs(value) >= 0.0005 else "0"
    transform = axes.get_yaxis_transform()
    axes.text(1.03, row, text, transform=transform, fontsize=6.5, color=INK, va="center", weight=weight)


def _heading(axes: Axes, title: str, note: str) -> None:
    axes.set_title(title, fontsize=9, color=INK, pad=15, weight="bold")
    position: dict[str, Any] = {"xycoords": "axes fraction", "xytext": (0, 4), "textcoords": "offset points"}
    axes.annotate(note, (0.5, 1.0), **position, fontsize=7, color=NOTE, ha="center", va="bottom")


# Figures 2 and 3 of the paper


def _norm(audit: Audit, module: str, narrow: bool = False) -> Figure:
    norm = norm_of(audit, module)
    figure = _figure(3.6, 4.6) if narrow else _figure(7.6, 2.7)
    from matplotlib.ticker import MaxNLocator  # after the figure, which raises a helpful error without matplotlib

    panels = figure.subplots(*((2, 1) if narrow else (1, 2)), sharey=True)
    for axes, title, values in zip(panels, ("at its output", "at its input"), (norm.after, norm.before), strict=True):
        _dress(axes, "position", "relevance" if axes is panels[0] else "")
        _heading(axes, title, f"sum {number(sum(values))}")
        colours = [hexadecimal(FOR if value > 0 else AGAINST) for value in values]
        axes.bar(range(len(values)), values, width=0.8 if len(values) < 100 else 1.0, color=colours, zorder=3)
        axes.axhline(0, color=INK, linewidth=0.6, zorder=4)
        axes.grid(axis="x", visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.set_xlim(-0.7, len(values) - 0.3)
    return figure


def _scatters(audits: Sequence[Audit], narrow: bool = False) -> Figure:
    across = min(2 if narrow else ACROSS, len(require_audits(audits)))
    down = ceil(len(audits) / across)
    size = 1.9 if narrow else 2.5
    figure = _figure(size * max(2, across), (size + 0.25) * down + 0.2)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    outputs = [value for audit in audits for value in audit.outputs] or [0.0, 1.0]
    wide = max(outputs) - min(outputs) or 1.0
    for i, (axes, audit) in enumerate(zip(panels, audits, strict=False)):
        last = i + across >= len(audits)
        _dress(axes, "explained output" if last else "", "sum of the inputs" if i % across == 0 else "")
        _scatter(axes, audit, audits, wide)
    for axes in panels[len(audits) :]:
        axes.axis("off")
    return figure


def _scatter(axes: Axes, audit: Audit, audits: Sequence[Audit], wide: float) -> None:
    from matplotlib.ticker import MaxNLocator

    near = [values for other in audits for values in (other.outputs, other.sums) if _fits_axis(other, wide)]
    values = [value for part in near for value in part] or [*audit.outputs] or [0.0, 1.0]
    room = 0.06 * (max(values) - min(values)) or 1.0
    limits = min(values) - room, max(values) + room
    axes.set_box_aspect(1)
    _heading(axes, audit.rules, f"gap {number(audit.ledger.gap)}")
    every = max(1.0, len(audit.sums) / POINTS)
    drawn = [int(i * every) for i in range(min(POINTS, len(audit.sums)))]
    colour, _ = STYLES.get(audit.rules, (OLIVE, SOLID))
    points = [audit.outputs[i] for i in drawn], [audit.sums[i] for i in drawn]
    axes.plot(*points, "o", markersize=3, color=colour, alpha=0.7, markeredgewidth=0, zorder=3)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5))
    axes.axline((limits[0], limits[0]), slope=1, color=INK, linewidth=0.8, zorder=2)
    axes.set_xlim(limits)
    if _fits_axis(audit, wide):
        axes.set_ylim(limits)
        return
    low, high = min(audit.sums), max(audit.sums)
    axes.set_ylim(low - 0.15 * (high - low), high + 0.06 * (high - low))  # space for the label
    axes.text(0.97, 0.03, "own y axis", transform=axes.transAxes, fontsize=7, color=NOTE, ha="right", style="italic")


def _fits_axis(audit: Audit, wide: float) -> bool:
    """Return whether the sums fit on the axis of the outputs without making these too small to see."""
    both = (*audit.outputs, *audit.sums)
    return not both or max(both) - min(both) <= 4 * wide
