"""The figure of a bias study: histograms of the relevance of mentions in each group (Ali et al. 2022, figure 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from ..bias_study.result import BiasStudy, Group
from .bias_wording import classes, counted, displayable, headline
from .colours import AGAINST, FOR, hexadecimal
from .curves import INK, NOTE, PAGE_COLOURS, _caption, _dress, _figure, _prefix
from .evaluation_wording import interval
from .matplotlib_figures import drawing, save_figure
from .svg import embedded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS = 40
"""Approximate number of bars of a histogram."""

APART = 0.005
"""The share of mentions at each end that may be clipped into the last bar, so that outliers do not widen the axis."""


@dataclass(frozen=True)
class Bins:
    """Histogram bins shared by all groups, of equal width and with an edge at 0."""

    width: float
    first: int
    last: int
    beyond: int
    """Number of mentions outside of the range, which are counted in the last bars."""

    def shares(self, values: Sequence[float]) -> list[float]:
        """Return the share of values in each bar."""
        per_bar = [0.0] * (self.last - self.first + 1)
        for value in values:
            per_bar[min(max(_bar_index(value, self.width), self.first), self.last) - self.first] += 1 / len(values)
        return per_bar


def bins(values: Sequence[float]) -> Bins:
    """Return bins for the range of the values without outliers."""
    order = sorted(values) or [0.0]
    skipped = int(APART * len(order))
    low, high = min(order[skipped], 0.0), max(order[len(order) - 1 - skipped], 0.0)
    width = _nice((high - low) / BARS)
    first, last = min(_bar_index(low, width), -1), max(_bar_index(high, width), 0)
    return Bins(width, first, last, sum(not first <= _bar_index(value, width) <= last for value in order))


def _bar_index(value: float, width: float) -> int:
    """Return the index of a value's bar: negative below 0, and 0 for the bar that starts at 0."""
    return math.floor(value / width)


def _nice(width: float) -> float:
    """Return the next larger width with round edges."""
    if width <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(width))
    return next(step * power for step in (1, 1.25, 2, 2.5, 4, 5, 10) if step * power >= width * (1 - 1e-9))


@drawing()
def draw_histograms(study: BiasStudy, path: str | Path) -> None:
    """Draw a histogram of the relevance of mentions for each group, with the group's mean, and save the figure."""
    study = displayable(study)
    figure = _histograms(study)
    _caption(figure, histograms_caption(study))
    save_figure(figure, path)


@drawing()
def histograms_svg(study: BiasStudy, *, narrow: bool = False) -> Markup:
    """Return the figure of `draw_histograms` as inline SVG, without its caption."""
    study = displayable(study)
    means = "; ".join(f"{group.name}: mean {interval(group.mean)}" for group in study.groups)
    label = f"Histograms of the relevance of mentions. {means}"
    return embedded(_histograms(study, narrow), label, _prefix("histograms", narrow), PAGE_COLOURS)


def histograms_caption(study: BiasStudy) -> str:
    """Return the caption: what bars and marks show, model and data."""
    first, second = classes(study)
    beyond = bins([mention.relevance for mention in study.mentions]).beyond
    far = f" The outer bars include {counted(beyond, 'mention')} beyond the axis." if beyond else ""
    return (
        f"Relevance of all mentions, a panel for each group: red is for {first}, blue for {second}. Diamond and line: "
        f"the mean over the group's words with its 95 % interval.{far} {headline(study)}."
    )


def _histograms(study: BiasStudy, narrow: bool = False) -> Figure:
    shared = bins([mention.relevance for mention in study.mentions])
    groups = study.groups
    figure = _figure(4.0 if narrow else 8.6, 1.35 * max(1, len(groups)) + 0.55)
    panels = figure.subplots(max(1, len(groups)), 1, squeeze=False, sharex=True, sharey=True).ravel()
    relevance = {
        group.name: [mention.relevance for mention in study.mentions if mention.group == group.name] for group in groups
    }
    highest = max((share for values in relevance.values() for share in shared.shares(values)), default=1.0) or 1.0
    for axes, group in zip(panels, groups, strict=False):
        _panel(axes, group, shared, shared.shares(relevance[group.name]), highest, narrow)
    panels[-1].set_xlabel(f"relevance for {classes(study)[0]}, in logits", fontsize=8, color=INK)
    return figure


def _panel(axes: Axes, group: Group, shared: Bins, shares: Sequence[float], highest: float, narrow: bool) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    _dress(axes, "", "mentions")
    for i, share in enumerate(shares, start=shared.first):
        colour = hexadecimal(FOR if i >= 0 else AGAINST)
        if share:  # with an outline, bars are visible on dark pages too
            axes.bar(
                i * shared.width,
                share,
                shared.width,
                align="edge",
                color=colour,
                edgecolor=INK,
                linewidth=0.35,
                zorder=3,
            )
    top = 1.18 * highest
    axes.axvline(0, color=INK, linewidth=0.8, zorder=2)
    axes.plot([group.mean.low, group.mean.high], [top, top], color=INK, linewidth=1.6, zorder=5, solid_capstyle="butt")
    axes.plot([group.mean.mean], [top], "D", color=INK, markersize=4, zorder=6)
    axes.set_xlim(shared.first * shared.width, (shared.last + 1) * shared.width)
    axes.set_ylim(0, 1.36 * highest)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    title = f"{group.name}\N{EN SPACE}"
    axes.set_title(title, loc="left", fontsize=9, color=INK, weight="bold", pad=3)
    summary = f"mean {interval(group.mean)}"
    if not narrow:
        summary += f" · {counted(group.mentions, 'mention')} of {counted(group.entities, 'word')}"
    axes.set_title(summary, loc="right", fontsize=7.5, color=NOTE, pad=3)
