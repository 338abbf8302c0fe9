"""An evaluation as a page that needs nothing from outside, for readers of every kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._util.text import displayed
from ..evaluation.result import METRICS, Evaluation, MethodResult
from .components import Cell, Figure, Row, Table, plain
from .curves import conservation_caption, conservation_svg, curves_caption, curves_svg
from .evaluation_terminal import (
    SETTINGS,
    best,
    heading,
    headline,
    interval,
    is_of_graphs,
    protocol_line,
    ranked,
    said,
    setting,
    short,
)
from .evaluation_wording import difference, is_level, meanings, summary
from .rendering import render

WORDS = {"special": "special tokens go too", "eraser_percent": "percent of features, comprehensiveness and sufficiency"}
"""What settings are called on the page."""


def page(evaluation: Evaluation) -> str:
    """Return an evaluation as a whole page: summary, table, figures, differences, and how to read them."""
    evaluation = displayed(evaluation)
    return render(
        "evaluation.html",
        title=f"Faithfulness: {headline(evaluation)}",
        lines=[headline(evaluation), protocol_line(evaluation)],
        summary=[summary(evaluation)],
        results=_results(evaluation),
        curves=Figure(curves_svg(evaluation), curves_caption(evaluation)),
        differences=_differences(evaluation),
        sums=Figure(conservation_svg(evaluation), conservation_caption(evaluation)),
        conservation=_conservation(evaluation),
        protocol=_protocol(evaluation),
        provenance={key: said(value) for key, value in evaluation.provenance.items()},
        refused=evaluation.refused,
        meanings=meanings(evaluation),
    )


def _protocol(evaluation: Evaluation) -> dict[str, str]:
    found = dict(evaluation.protocol)
    if is_of_graphs(evaluation):
        found.pop("special", None)  # a graph has no special tokens
        found["virtual node"] = "stays"
    return {SETTINGS.get(key, WORDS.get(key, key)): setting(key, value) for key, value in found.items()}


def _results(evaluation: Evaluation) -> Table:
    winners = {metric: best(evaluation, metric) for metric in METRICS}

    def cells(one: MethodResult) -> list[Cell]:
        return [_cell(interval(getattr(one, metric)), one.method in winners[metric]) for metric in METRICS]

    apart = " Below the line: yardsticks." if any(one.reference for one in evaluation.methods) else ""
    note = f"Means with 95 % intervals. Bold: the best of a column, random apart.{apart}"
    return _table(note, plain(heading(metric) for metric in METRICS), evaluation, cells)


def _differences(evaluation: Evaluation) -> Table | None:
    firsts = {metric: order[0].method for metric in METRICS if (order := ranked(evaluation, metric))}
    known = {(pair.metric, name) for pair in evaluation.pairs for name in (pair.a, pair.b)}
    firsts = {metric: first for metric, first in firsts.items() if (metric, first) in known}
    if not firsts:
        return None

    def cells(one: MethodResult) -> list[Cell]:
        return [_difference(evaluation, metric, one.method, first) for metric, first in firsts.items()]

    titles = [Cell(heading(metric), below=f"minus {first}") for metric, first in firsts.items()]
    note = (
        "Each method minus the best of the column, on the same samples. Bold: the interval excludes 0; grey: it "
        "includes 0, and these samples do not tell the two apart."
    )
    return _table(note, titles, evaluation, cells)


def _difference(evaluation: Evaluation, metric: str, method: str, first: str) -> Cell:
    if method == first:
        return Cell("best")
    found = difference(evaluation, metric, method, first)
    if found is None:
        return Cell("not compared", kind="low")
    return _cell(interval(found), not is_level(found), "low" if is_level(found) else "")


def _conservation(evaluation: Evaluation) -> Table:
    def cells(one: MethodResult) -> list[Cell]:
        found = one.conservation
        return plain(short(value) for value in (found.correlation, found.slope, found.gap))

    note = "The sum of the scores against the output. Where scores add up, these are 1, 1 and 0; -: sums do not vary."
    return _table(note, plain(["correlation", "slope", "gap"]), evaluation, cells)


def _table(
    note: str, titles: Sequence[Cell], evaluation: Evaluation, cells: Callable[[MethodResult], list[Cell]]
) -> Table:
    """Return a table of all methods, the yardsticks apart."""
    rows, apart = (
        [Row(one.method, cells(one)) for one in evaluation.methods if one.reference == reference]
        for reference in (False, True)
    )
    return Table(note, [Cell("method"), *titles], rows, apart)


def _cell(text: str, strong: bool, kind: str = "") -> Cell:
    mean, _, limits = text.partition(" ")
    return Cell(mean, aside=limits, strong=strong, kind=kind)
