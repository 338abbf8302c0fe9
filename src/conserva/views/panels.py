"""The figures of the text experiment, a row for each dataset (Ali et al. 2022, figures 3 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..experiments.findings import row_of
from ..experiments.plan import EXACT, GI, OURS, ROWS, Row
from ..experiments.result import TextResult
from ..faithfulness.evaluation import MethodResult
from .curves import INK, NOTE, PANELS, POINTS, _caption, _dress, _figure, _lines, _plot, _points
from .figure import _shown
from .table import protocol_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = tuple(row for row in ROWS if row.group in ("paper", "slides") or row.method == EXACT)
"""What is drawn as a curve: more lines than these cannot be told apart."""

SUMS = tuple(row for row in ROWS if row.method in (GI, OURS, EXACT))
"""What is drawn as a scatter plot."""


def draw_all_curves(results: Sequence[TextResult], path: str | Path) -> None:
    """Draw the activation and the pruning curves of every dataset, with 95 % bands, and save them."""
    figure = _figure(7.6, 2.15 * len(results) + 0.7)
    grid = figure.subplots(len(results), 2, squeeze=False)
    handles = {}
    for one, row in zip(results, grid, strict=True):
        found = [(line, _of(one, line)) for line in LINES]
        known = [(line.title, method) for line, method in found if method is not None]
        looks = _lines([method for _, method in known])
        for axes, (name, _, x, y) in zip(row, PANELS, strict=True):
            _dress(axes, x if one is results[-1] else "", y)
            lines = [(title, method) for title, method in known if name in method.curves]
            _plot(axes, name, [method for _, method in lines], looks, [title for title, _ in lines])
            handles.update({line.get_label(): line for line in axes.get_lines()})
        _name_row(row[0], one.title)
    order = [line.title for line in LINES if line.title in handles]
    figure.legend(
        [handles[title] for title in order], order, loc="outside upper center", ncols=5, frameon=False,
        fontsize=8, handlelength=2.8, columnspacing=1.6, labelcolor=INK,
    )  # fmt: skip
    _caption(figure, curves_caption(results))
    figure.savefig(path)


def draw_all_conservation(results: Sequence[TextResult], path: str | Path) -> None:
    """Draw the sum of the scores against the output for every dataset, a point for each sample, and save it."""
    figure = _figure(2.3 * len(SUMS) + 0.3, 2.5 * len(results) + 0.2)
    grid = figure.subplots(len(results), len(SUMS), squeeze=False)
    for one, row in zip(results, grid, strict=True):
        for axes, line in zip(row, SUMS, strict=True):
            _dress(axes, "explained output" if one is results[-1] else "", "sum of the scores" * (axes is row[0]))
            _scatter(axes, line, _of(one, line))
        _name_row(row[0], one.title)
    _caption(figure, conservation_caption(results))
    figure.savefig(path)


def curves_caption(results: Sequence[TextResult]) -> str:
    """Say what the curves are, of which models."""
    return (
        "Left: how the probability of the true class grows as tokens are shown; the higher, the better. Right: how far "
        "the logits move as tokens are removed; the lower, the better. Explained is the logit of the true class, by "
        "the paper's methods and by the rule set exact. Means over test texts with 95 % bands, "
        f"{_models(results)} · {protocol_line(results[0].evaluation)}."
    )


def conservation_caption(results: Sequence[TextResult]) -> str:
    """Say what the points are, of which models."""
    most = max((len(_sums(one)) for one in results), default=0)
    seed = results[0].trained[0].seed
    return (
        "Sum of the scores against the explained output, the logit of the true class; on the line both agree. By "
        f"Gradient x Input, by the rule set ah+ln, and by exact, each ending at the embeddings. Points: at most "
        f"{min(most, POINTS)} test texts of a dataset, on the classifier of seed {seed}. Correlation and slope: over "
        f"all test texts evaluated, {_models(results)}. Every y axis spans outputs and sums: scales differ."
    )


def _models(results: Sequence[TextResult]) -> str:
    counts = sorted({len(one.trained) for one in results})
    many = " or ".join(str(count) for count in counts)
    base = ", ".join(dict.fromkeys(str(one.recipe["embeddings"]) for one in results))
    mean = "of one attention-only classifier" if counts == [1] else f"the mean of {many} attention-only classifiers"
    return f"{mean} for each dataset on frozen embeddings of {base}"


def _sums(one: TextResult) -> tuple[float, ...]:
    return max((found.conservation.sums for row in SUMS if (found := _of(one, row))), key=len, default=())


def _of(one: TextResult, row: Row) -> MethodResult | None:
    """Return a row's result under its method's bare name: what the styles know it by."""
    found = row_of(one.evaluation, row.method)
    return None if found is None else replace(found, method=found.method.partition(":")[0])


def _name_row(axes: Axes, title: str) -> None:
    """Write a dataset's name left of its row."""
    axes.annotate(
        _shown(title), xy=(0, 0.5), xycoords=axes.yaxis.label, xytext=(-6, 0), textcoords="offset points",
        ha="right", va="center", rotation=90, fontsize=9.5, weight="bold", color=INK,
    )  # fmt: skip


def _scatter(axes: Axes, row: Row, one: MethodResult | None) -> None:
    if one is None or not one.conservation.sums:
        axes.set_box_aspect(1)
        axes.set(xticks=[], yticks=[])
        axes.set_title(_shown(row.title), fontsize=9, color=INK, pad=16)
        axes.text(0.5, 0.5, "does not apply", transform=axes.transAxes, fontsize=7, color=NOTE, ha="center")
        return
    _points(axes, one, str(_lines([one])[one.method]["color"]), _shown(row.title))
    outputs, sums = one.conservation.outputs, one.conservation.sums
    for limit, values in ((axes.set_xlim, outputs), (axes.set_ylim, (*outputs, *sums))):
        room = 0.06 * (max(values) - min(values)) or 1.0
        limit(min(values) - room, max(values) + room)
    axes.axline((outputs[0], outputs[0]), slope=1, color=INK, linewidth=0.8, zorder=1)
