"""Summary of the curves of all samples: areas, mean curves, intervals and differences."""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .measure import LEAVE_ONE_OUT
from .protocol import Protocol
from .result import METRICS, MethodResult, Pair
from .statistics import Bootstrap, Table, area, conservation

CURVES = ("activation", "pruning", "pruning_probability")


def rows_of_methods(names: Sequence[str]) -> dict[str, list[str]]:
    """Return row of the table -> its methods: one per row, except that all seeds of `random` share a row."""
    rows: dict[str, list[str]] = {}
    seeds = [name for name in names if re.fullmatch(r"random(:seed=\d+)?", name)]
    for name in names:
        row = "random" if name in seeds and len(seeds) > 1 else name
        rows.setdefault(row, []).append(name)
    return rows


def summarise(
    samples: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]], protocol: Protocol, seed: int
) -> tuple[tuple[MethodResult, ...], tuple[Pair, ...]]:
    """Return the results of all methods, and the differences of all pairs of methods.

    Parameters
    ----------
    samples
        For each sample the records of its scores and of its curves; they are read once, one at a time.
    protocol
        The protocol of the evaluation.
    seed
        The seed of the bootstrap.
    """
    rest = iter(samples)
    first = next(rest)
    rows = rows_of_methods(list(first[1]["methods"]))
    fractions = protocol.fractions()
    width = len(METRICS) + len(CURVES) * len(fractions)
    table = Table(width * len(rows))
    outputs, sums = array("d"), {row: array("d") for row in rows}
    for scored, measured in itertools.chain([first], rest):
        table.append(np.concatenate([_numbers(measured["methods"], names, fractions) for names in rows.values()]))
        outputs.append(scored["output"])
        for row, names in rows.items():
            sums[row].append(sum(scored["scores"][names[0]]))
    bootstrap = Bootstrap(table, seed)
    start = {row: width * number for number, row in enumerate(rows)}
    areas = {row: slice(first, first + len(METRICS)) for row, first in start.items()}
    references = (LEAVE_ONE_OUT, *first[0].get("controls", ()))
    results = [
        MethodResult(
            row,
            **dict(zip(METRICS, bootstrap.intervals(areas[row]), strict=True)),
            conservation=conservation(np.array(outputs), np.array(sums[row])),
            curves={
                name: bootstrap.curve(fractions, slice(begin, begin + len(fractions)))
                for name, begin in zip(CURVES, itertools.count(areas[row].stop, len(fractions)), strict=False)
            },
            reference=row in references,
        )
        for row in rows
    ]
    differences = [
        Pair(metric, a, b, interval.mean, interval.low, interval.high)
        for a, b in itertools.combinations(rows, 2)
        for metric, interval in zip(METRICS, bootstrap.intervals(areas[a], areas[b]), strict=True)
    ]
    return tuple(results), tuple(differences)


def _numbers(points: Mapping[str, Any], names: Sequence[str], fractions: Sequence[float]) -> np.ndarray:
    """Return the metrics of one sample, then its curves at the given fractions, averaged over methods."""

    def mean(key: str) -> np.ndarray:
        return np.asarray(np.mean([points[name][key] for name in names], axis=0))

    curves = [mean(name) for name in CURVES]
    own = [np.linspace(0, 1, len(curve)) for curve in curves]  # the number of points can depend on the sample
    areas = [area(curve, where) for curve, where in zip(curves, own, strict=True)]
    shown = [np.interp(fractions, where, curve) for curve, where in zip(curves, own, strict=True)]
    return np.concatenate([[*areas, mean("comprehensiveness"), mean("sufficiency")], *shown])
