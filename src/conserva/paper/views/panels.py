"""The figures of the experiments: a row of panels for each dataset (Ali et al. 2022, figures 3 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..._util.text import displayed
from ...evaluation.result import Evaluation, MethodResult
from ...views.curves import INK, NOTE, PANELS, POINTS, _caption, _dress, _figure, _lines, _plot, _points
from ...views.evaluation_terminal import protocol_line
from ...views.matplotlib_figures import drawing, save_figure
from ..experiments.findings import row_of
from ..experiments.plan import EXACT, GI, OURS, ROWS, Row
from ..experiments.result import TextResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = tuple(row for row in ROWS if row.group in ("paper", "slides") or row.method == EXACT)
"""What is drawn as a curve: more lines than these cannot be told apart."""

SUMS = tuple(row for row in ROWS if row.method in (GI, OURS, EXACT))
"""What is drawn as a scatter plot."""

Curves = tuple[str, Evaluation]
"""A row of curves: its title, and what is drawn."""

Scatters = tuple[str, Sequence[MethodResult | None]]
"""A row of scatter plots: its title, and a method for each column; None where it does not apply."""


def draw_all_curves(results: Sequence[TextResult], path: str | Path) -> None:
    """Draw the activation and the pruning curves of every dataset, with 95 % bands, and save them."""
    results = displayed(results)
    draw_curve_rows([(one.title, one.evaluation) for one in results], LINES, curves_caption(results), path)


def draw_all_conservation(results: Sequence[TextResult], path: str | Path) -> None:
    """Draw the sum of the scores against the output for every dataset, a point for each sample, and save it."""
    results = displayed(results)
    rows = [(one.title, [_of(one.evaluation, row) for row in SUMS]) for one in results]
    draw_scatter_rows(rows, [row.title for row in SUMS], conservation_caption(results), path)


@drawing()
def draw_curve_rows(rows: Sequence[Curves], lines: Sequence[Row], caption: str, path: str | Path) -> None:
    """Draw activation and pruning curves, with 95 % bands, a row for each evaluation, and save them."""
    figure = _figure(7.6, 2.15 * len(rows) + 0.7)
    grid = figure.subplots(len(rows), 2, squeeze=False)
    handles = {}
    for i, ((title, evaluation), panels) in enumerate(zip(rows, grid, strict=True)):
        found = [(line, _of(evaluation, line)) for line in lines]
        known = [(line.title, method) for line, method in found if method is not None]
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
    found = (_of(one.evaluation, row) for row in SUMS)
    return max((method.conservation.sums for method in found if method is not None), key=len, default=())


def _of(evaluation: Evaluation, row: Row) -> MethodResult | None:
    """Return a row's result under its method's bare name: what the styles know it by."""
    found = row_of(evaluation, row.method)
    return None if found is None else replace(found, method=found.method.partition(":")[0])


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
