"""The figure of a bias study: how the relevance of mentions is spread in each group (Ali et al. 2022, figure 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from ..bias_study.result import BiasStudy, Group
from .bias_wording import classes, counted, gated, headline
from .colours import AGAINST, FOR, hexadecimal
from .curves import INK, NOTE, PAGE_COLOURS, _caption, _dress, _figure
from .evaluation_terminal import interval
from .matplotlib_figures import drawing, save_figure
from .svg import embedded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS = 40
"""About how many bars a histogram has from end to end."""

APART = 0.005
"""The share of mentions at each end that may be put into the last bar, so that a few do not flatten all others."""


@dataclass(frozen=True)
class Bins:
    """The bars that all groups share: of one width, with an edge at 0, so that none is for and against at once."""

    width: float
    first: int
    last: int
    beyond: int
    """How many mentions lie outside, and are counted in the last bars."""

    def shares(self, values: Sequence[float]) -> list[float]:
        """Return the share of values in each bar."""
        found = [0.0] * (self.last - self.first + 1)
        for value in values:
            found[min(max(_place(value, self.width), self.first), self.last) - self.first] += 1 / len(values)
        return found


def bins(values: Sequence[float]) -> Bins:
    """Return bars for values: from end to end, but for a few far out."""
    order = sorted(values) or [0.0]
    skipped = int(APART * len(order))
    low, high = min(order[skipped], 0.0), max(order[len(order) - 1 - skipped], 0.0)
    width = _nice((high - low) / BARS)
    first, last = min(_place(low, width), -1), max(_place(high, width), 0)
    return Bins(width, first, last, sum(not first <= _place(value, width) <= last for value in order))


def _place(value: float, width: float) -> int:
    """Return the bar of a value: those below 0 are on the left, 0 itself is on the right."""
    return math.floor(value / width)


def _nice(width: float) -> float:
    """Return the next width whose edges read well."""
    if width <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(width))
    return next(step * power for step in (1, 1.25, 2, 2.5, 4, 5, 10) if step * power >= width * (1 - 1e-9))


@drawing()
def draw_histograms(study: BiasStudy, path: str | Path) -> None:
    """Draw the relevance of the mentions of each group on one axis, with the groups' means, and save it."""
    study = gated(study)
    figure = _histograms(study)
    _caption(figure, histograms_caption(study))
    save_figure(figure, path)


@drawing()
def histograms_svg(study: BiasStudy, prefix: str = "histograms-") -> Markup:
    """Return the figure of `draw_histograms` as SVG to stand in a page; the caption is the page's to write."""
    study = gated(study)
    means = "; ".join(f"{one.name}: mean {interval(one.mean)}" for one in study.groups)
    return embedded(_histograms(study), f"Histograms of the relevance of mentions. {means}", prefix, PAGE_COLOURS)


def histograms_caption(study: BiasStudy) -> str:
    """Say what the bars and marks are, of which model, on which data."""
    first, second = classes(study)
    beyond = bins([one.relevance for one in study.mentions]).beyond
    far = f" The last bars hold {counted(beyond, 'mention')} from further out." if beyond else ""
    return (
        f"Relevance of all mentions, a panel for each group on one axis: red speaks for {first}, blue for {second}. "
        f"Diamond and line: the mean over the group's words with its 95 % interval.{far} {headline(study)}."
    )


def _histograms(study: BiasStudy) -> Figure:
    shared = bins([one.relevance for one in study.mentions])
    groups = study.groups
    figure = _figure(8.6, 1.35 * max(1, len(groups)) + 0.55)
    panels = figure.subplots(max(1, len(groups)), 1, squeeze=False, sharex=True, sharey=True).ravel()
    found = {one.name: [mention.relevance for mention in study.mentions if mention.group == one.name] for one in groups}
    highest = max((share for values in found.values() for share in shared.shares(values)), default=1.0) or 1.0
    for axes, group in zip(panels, groups, strict=False):
        _panel(axes, group, shared, shared.shares(found[group.name]), highest)
    panels[-1].set_xlabel(f"relevance for {classes(study)[0]}, in logits", fontsize=8, color=INK)
    return figure


def _panel(axes: Axes, group: Group, shared: Bins, shares: Sequence[float], highest: float) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    _dress(axes, "", "mentions")
    for i, share in enumerate(shares, start=shared.first):
        colour = hexadecimal(FOR if i >= 0 else AGAINST)
        if share:  # an outline keeps bars apart from dark grounds too
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
    said = f"mean {interval(group.mean)} · {counted(group.mentions, 'mention')} of {counted(group.entities, 'word')}"
    axes.set_title(said, loc="right", fontsize=7.5, color=NOTE, pad=3)
