"""The figures of the experiments: a row of panels for each dataset (Ali et al. 2022, figures 3 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..._util.text import displayed
from ...evaluation.result import Evaluation, MethodResult
from ...views.curves import INK, NOTE, PANELS, POINTS, _caption, _dress, _figure, _lines, _plot, _points
from ...views.matplotlib_figures import drawing, save_figure
from ..experiments.findings import columns
from ..experiments.result import AnyResult, row_of
from ..experiments.rows import OURS, Row, method_of
from .wording import wording_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUMS = ("GI", OURS, "exact")
"""The titles of the rows that are drawn as scatter plots."""

Curves = tuple[str, Evaluation]
"""A row of curves: its title, and what is drawn."""

Scatters = tuple[str, Sequence[MethodResult | None]]
"""A row of scatter plots: its title, and a method for each column; None where it does not apply."""


def draw_all_curves(results: Sequence[AnyResult], path: str | Path) -> None:
    """Draw the activation and the pruning curves of every dataset under every masking, with 95 % bands."""
    results = displayed(results)
    # More lines than these cannot be told apart.
    lines = [row for row in results[0].rows if row.group in ("paper", "slides") or row.title in ("exact", "intensity")]
    draw_curve_rows([(one.title, one.evaluation) for one in columns(results)], lines, curves_caption(results), path)


def draw_all_conservation(results: Sequence[AnyResult], path: str | Path) -> None:
    """Draw the sum of the scores against the output for every dataset, a point for each sample."""
    results = displayed(results)
    rows = [(one.title, [_sums(one, title) for title in SUMS]) for one in results]
    draw_scatter_rows(rows, SUMS, conservation_caption(results), path)


@drawing()
def draw_curve_rows(rows: Sequence[Curves], lines: Sequence[Row], caption: str, path: str | Path) -> None:
    """Draw activation and pruning curves, with 95 % bands, a row for each evaluation, and save them."""
    figure = _figure(7.6, 2.15 * len(rows) + 0.7)
    grid = figure.subplots(len(rows), 2, squeeze=False)
    handles = {}
    for i, ((title, evaluation), panels) in enumerate(zip(rows, grid, strict=True)):
        found = [(line, row_of(evaluation, line.method)) for line in lines]
        known = [(line.title, _bare(method)) for line, method in found if method is not None]
        looks = _lines([method for _, method in known])
        for axes, (name, _, x, y) in zip(panels, PANELS, strict=True):
            _dress(axes, x if i == len(rows) - 1 else "", y)
            drawn = [(label, method) for label, method in known if name in method.curves]
            _plot(axes, name, [method for _, method in drawn], looks, [label for label, _ in drawn])
            handles.update({line.get_label(): line for line in axes.get_lines()})
        _name_row(panels[0], title)
    order = [line.title for line in lines if line.title in handles]
    figure.legend(
        [handles[title] for title in order], order, loc="outside upper center", ncols=5, frameon=False,
        fontsize=8, handlelength=2.8, columnspacing=1.6, labelcolor=INK,
    )  # fmt: skip
    _caption(figure, caption)
    save_figure(figure, path)


@drawing()
def draw_scatter_rows(rows: Sequence[Scatters], titles: Sequence[str], caption: str, path: str | Path) -> None:
    """Draw sums of scores against outputs, a column for each title, and save them."""
    figure = _figure(2.3 * len(titles) + 0.3, 2.5 * len(rows) + 0.2)
    grid = figure.subplots(len(rows), len(titles), squeeze=False)
    for i, ((title, methods), panels) in enumerate(zip(rows, grid, strict=True)):
        for axes, name, one in zip(panels, titles, methods, strict=True):
            last = i == len(rows) - 1
            _dress(axes, "explained output" if last else "", "sum of the scores" * (axes is panels[0]))
            _scatter(axes, name, one)
        _name_row(panels[0], title)
    _caption(figure, caption)
    save_figure(figure, path)


def curves_caption(results: Sequence[AnyResult]) -> str:
    """Return the caption of the curves."""
    words = wording_of(results)
    brightness = ", and by brightness where nodes have one" if words.name == "graphs" else ""
    return (
        f"Left: how the probability of the true class grows as {words.unit} are shown; the higher, the better. Right: "
        f"how far the logits move as {words.unit} are removed; the lower, the better. Explained is the logit of the "
        f"true class, by the paper's methods, by the rule set exact{brightness}. Means over test {words.name} with "
        f"95 % bands, {_models(results)} · {words.protocol(results)}."
    )


def conservation_caption(results: Sequence[AnyResult]) -> str:
    """Return the caption of the scatter plots."""
    words = wording_of(results)
    most = max(
        (len(found.sums) for one in results for title in SUMS if (found := one.conservation(title)) is not None),
        default=0,
    )
    return (
        f"{words.sums} By Gradient x Input, by the rule set ah+ln, and by exact. Points: at most {min(most, POINTS)} "
        f"test {words.name} of a dataset, on the model of seed {results[0].trained[0].seed}. Correlation and slope: "
        f"over all test {words.name} evaluated, {words.correlations}. Every y axis spans outputs and sums: scales "
        "differ."
    )


def _models(results: Sequence[AnyResult]) -> str:
    counts = sorted({len(one.trained) for one in results})
    many = " or ".join(str(count) for count in counts)
    return f"{'of one model' if counts == [1] else f'the mean of {many} models'} for each dataset"


def _sums(one: AnyResult, title: str) -> MethodResult | None:
    """Return a row's result with the points of its scatter plot."""
    method, points = method_of(one.rows, title), one.conservation(title)
    found = next((row for each in one.evaluations.values() if (row := row_of(each, method))), None)
    return None if found is None or points is None else replace(_bare(found), conservation=points)


def _bare(found: MethodResult) -> MethodResult:
    """Return a result under its method's name without options, by which its style is known."""
    return replace(found, method=found.method.partition(":")[0])


def _name_row(axes: Axes, title: str) -> None:
    """Write a dataset's name left of its row."""
    axes.annotate(
        title, xy=(0, 0.5), xycoords=axes.yaxis.label, xytext=(-6, 0), textcoords="offset points",
        ha="right", va="center", rotation=90, fontsize=9.5, weight="bold", color=INK,
    )  # fmt: skip


def _scatter(axes: Axes, title: str, one: MethodResult | None) -> None:
    if one is None or not one.conservation.sums:
        axes.set_box_aspect(1)
        axes.set(xticks=[], yticks=[])
        axes.set_title(title, fontsize=9, color=INK, pad=16)
        axes.text(0.5, 0.5, "does not apply", transform=axes.transAxes, fontsize=7, color=NOTE, ha="center")
        return
    _points(axes, one, str(_lines([one])[one.method]["color"]), title)
    outputs, sums = one.conservation.outputs, one.conservation.sums
    for limit, values in ((axes.set_xlim, outputs), (axes.set_ylim, (*outputs, *sums))):
        room = 0.06 * (max(values) - min(values)) or 1.0
        limit(min(values) - room, max(values) + room)
    axes.axline((outputs[0], outputs[0]), slope=1, color=INK, linewidth=0.8, zorder=1)
