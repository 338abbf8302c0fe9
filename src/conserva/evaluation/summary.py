"""Summary of the curves of all samples: areas, mean curves, intervals and differences."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .additional import Additional
from .comparison import Pair, rows_of_methods
from .measure import LEAVE_ONE_OUT
from .protocol import Protocol
from .result import METRICS, MethodResult
from .statistics import Bootstrap, Table, area, conservation

CURVES = ("activation", "pruning", "pruning_probability")

GAIN_CURVES = ("least_first", "most_first", "most_first_probability")
"""The curves of the symmetric relevance gain, which is the area between the first two."""


class Summary(NamedTuple):
    """The results of all methods, the differences of all pairs, and how many samples have no value of a metric."""

    methods: tuple[MethodResult, ...]
    pairs: tuple[Pair, ...]
    without_value: dict[str, int]


def summarise(
    samples: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]],
    protocol: Protocol,
    seed: int,
    additional: Additional = Additional(),  # noqa: B008 - frozen
) -> Summary:
    """Return the results of all methods, and the differences of all pairs of methods.

    Parameters
    ----------
    samples
        For each sample the records of its scores and of its curves; they are read once, one at a time.
    protocol
        The protocol of the evaluation.
    seed
        The seed of the bootstrap.
    additional
        Which additional metrics were measured.
    """
    rest = iter(samples)
    first = next(rest)
    rows = rows_of_methods(list(first[1]["methods"]))
    fractions = protocol.fractions()
    metrics: tuple[str, ...] = (*METRICS, "srg") if additional.srg else METRICS
    shown = (*CURVES, *GAIN_CURVES) if additional.srg else CURVES
    width = len(metrics) + len(shown) * len(fractions)
    table = Table(width * len(rows))
    ranks = {metric: Table(len(rows)) for metric in ("lds", "tau") if getattr(additional, metric)}
    outputs, sums = array("d"), {row: array("d") for row in rows}
    for scored, measured in itertools.chain([first], rest):
        points = measured["methods"]
        table.append(np.concatenate([_numbers(points, names, fractions, shown) for names in rows.values()]))
        for metric, defined in ranks.items():
            if all(metric in each for each in points.values()):
                defined.append(np.concatenate([np.atleast_1d(_mean(points, names, metric)) for names in rows.values()]))
        outputs.append(scored["output"])
        for row, names in rows.items():
            sums[row].append(sum(scored["scores"][names[0]]))
    bootstrap = Bootstrap(table, seed)
    start = {row: width * number for number, row in enumerate(rows)}
    groups: list[tuple[Bootstrap, tuple[str, ...], dict[str, slice]]] = [
        (bootstrap, metrics, {row: slice(first, first + len(metrics)) for row, first in start.items()})
    ]
    columns = {row: slice(number, number + 1) for number, row in enumerate(rows)}
    groups += [(Bootstrap(defined, seed), (metric,), columns) for metric, defined in ranks.items() if defined.samples]
    references = (LEAVE_ONE_OUT, *first[0].get("controls", ()))
    results = [
        MethodResult(
            row,
            **{
                metric: interval
                for each, names, where in groups
                for metric, interval in zip(names, each.intervals(where[row]), strict=True)
            },
            conservation=conservation(np.array(outputs), np.array(sums[row])),
            curves={
                name: bootstrap.curve(fractions, slice(begin, begin + len(fractions)))
                for name, begin in zip(shown, itertools.count(start[row] + len(metrics), len(fractions)), strict=False)
            },
            reference=row in references,
        )
        for row in rows
    ]
    differences = [
        Pair(metric, a, b, interval.mean, interval.low, interval.high)
        for a, b in itertools.combinations(rows, 2)
        for each, names, where in groups
        for metric, interval in zip(names, each.intervals(where[a], where[b]), strict=True)
    ]
    without_value = {metric: table.samples - defined.samples for metric, defined in ranks.items()}
    return Summary(tuple(results), tuple(differences), {name: count for name, count in without_value.items() if count})


def _mean(points: Mapping[str, Any], names: Sequence[str], key: str) -> np.ndarray:
    return np.asarray(np.mean([points[name][key] for name in names], axis=0))


def _numbers(
    points: Mapping[str, Any], names: Sequence[str], fractions: Sequence[float], shown: Sequence[str]
) -> np.ndarray:
    """Return the metrics of one sample, then its curves at the given fractions, averaged over methods."""
    curves = {name: _mean(points, names, name) for name in shown}
    where = {name: np.linspace(0, 1, len(curve)) for name, curve in curves.items()}  # as many points as the sample has
    metrics = [area(curves[name], where[name]) for name in CURVES]
    metrics += [_mean(points, names, "comprehensiveness"), _mean(points, names, "sufficiency")]
    if "most_first" in shown:
        metrics.append(area(curves["least_first"] - curves["most_first"], where["most_first"]))
    return np.concatenate([metrics, *(np.interp(fractions, where[name], curve) for name, curve in curves.items())])
