"""An evaluation as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._util.text import displayed
from ..evaluation.result import Evaluation, MethodResult
from .components import Cell, Row, Table, plain
from .curves import conservation_caption, conservation_svg, curves_caption, curves_svg
from .evaluation_wording import (
    SETTINGS,
    best,
    by_auac,
    guide,
    heading,
    headline,
    interval,
    is_level,
    is_of_graphs,
    left_out,
    meanings,
    protocol_line,
    setting,
    short,
    summary,
    value_text,
    verdict,
)
from .rendering import render
from .report_figure import report_figure

LABELS = {
    "special": "special tokens removed too",
    "eraser_percent": "percent of features, comprehensiveness and sufficiency",
    "srg": "SRG measured",
    "lds": "random subsets of features, LDS",
    "tau": "tau measured",
}
"""Setting of the protocol -> its label on the page."""


def page(evaluation: Evaluation) -> str:
    """Return an HTML page: summary, table, figures, differences, and definitions of the terms."""
    evaluation = displayed(evaluation)
    return render(
        "evaluation.html",
        title=f"Faithfulness: {headline(evaluation)}",
        lines=[headline(evaluation), protocol_line(evaluation)],
        verdict=verdict(evaluation),
        guide=guide(evaluation),
        summary=[summary(evaluation)],
        results=_results(evaluation),
        curves=report_figure(curves_svg, curves_caption(evaluation), evaluation),
        differences=_differences(evaluation),
        sums=report_figure(conservation_svg, conservation_caption(evaluation), evaluation),
        conservation=_conservation(evaluation),
        protocol=_protocol(evaluation),
        provenance={key: value_text(value) for key, value in evaluation.provenance.items()},
        refused=evaluation.refused,
        meanings=meanings(evaluation),
    )


def _protocol(evaluation: Evaluation) -> dict[str, str]:
    settings = dict(evaluation.protocol)
    if is_of_graphs(evaluation):
        settings.pop("special", None)  # a graph has no special tokens
        settings["virtual node"] = "kept"
    return {SETTINGS.get(key, LABELS.get(key, key)): setting(key, value) for key, value in settings.items()}


def _results(evaluation: Evaluation) -> Table:
    winners = {metric: best(evaluation, metric) for metric in evaluation.metrics}

    def cells(result: MethodResult) -> list[Cell]:
        return [
            _cell(interval(getattr(result, metric)), result.method in winners[metric]) for metric in evaluation.metrics
        ]

    legend = " Below the line: yardsticks." if any(result.reference for result in evaluation.methods) else ""
    note = (
        f"Means with 95 % intervals. Bold: the best method of a column, except random. The highest AUAC first.{legend} "
        f"{left_out(evaluation)}"
    ).strip()
    return _table(note, plain(heading(metric) for metric in evaluation.metrics), by_auac(evaluation.methods), cells)


def _differences(evaluation: Evaluation) -> Table | None:
    firsts = {metric: order[0].method for metric in evaluation.metrics if (order := evaluation.ranked(metric))}
    known = {(pair.metric, name) for pair in evaluation.pairs for name in (pair.a, pair.b)}
    firsts = {metric: best_method for metric, best_method in firsts.items() if (metric, best_method) in known}
    if not firsts:
        return None

    def cells(result: MethodResult) -> list[Cell]:
        return [_difference(evaluation, metric, result.method, best_method) for metric, best_method in firsts.items()]

    titles = [Cell(heading(metric), below=f"minus {best_method}") for metric, best_method in firsts.items()]
    note = (
        "Each method minus the best one of the column, on the same samples. Bold: the interval excludes 0. Grey: it "
        "includes 0, so these samples do not show a difference."
    )
    return _table(note, titles, by_auac(evaluation.methods), cells)


def _difference(evaluation: Evaluation, metric: str, method: str, best_method: str) -> Cell:
    if method == best_method:
        return Cell("best")
    estimate = evaluation.difference(metric, method, best_method)
    if estimate is None:
        return Cell("not compared", kind="low")
    return _cell(interval(estimate), not is_level(estimate), "low" if is_level(estimate) else "")


def _conservation(evaluation: Evaluation) -> Table:
    def cells(result: MethodResult) -> list[Cell]:
        conservation = result.conservation
        return plain(short(value) for value in (conservation.correlation, conservation.slope, conservation.distance))

    note = (
        "The sum of the scores compared with the output: if they are equal, correlation and slope are 1 and the "
        "distance from the output, the mean of |output - sum|, is 0; -: the sums are constant. The smallest distance "
        "first."
    )
    order = sorted(evaluation.methods, key=lambda result: result.conservation.distance)
    return _table(note, plain(["correlation", "slope", "distance from the output"]), order, cells)


def _table(
    note: str, titles: Sequence[Cell], methods: Sequence[MethodResult], cells: Callable[[MethodResult], list[Cell]]
) -> Table:
    """Return a table of all methods, with yardsticks in a separate section."""
    rows, yardsticks = (
        [Row(result.method, cells(result)) for result in methods if result.reference == reference]
        for reference in (False, True)
    )
    return Table(note, [Cell("method"), *titles], rows, yardsticks)


def _cell(text: str, strong: bool, kind: str = "") -> Cell:
    mean, _, limits = text.partition(" ")
    return Cell(mean, below=limits, strong=strong, kind=kind)
