"""From the points of all samples to areas, curves, intervals and differences."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .evaluation import METRICS, Conservation, MethodResult, Pair
from .measure import LEAVE_ONE_OUT
from .protocol import Protocol
from .statistics import Bootstrap, area, conservation

CURVES = ("activation", "pruning", "pruning_probability")


def rows_of_methods(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the rows of the table: each method is one, and the seeds of `random` are one together."""
    rows: dict[str, list[str]] = {}
    seeds = [name for name in names if re.fullmatch(r"random(:seed=\d+)?", name)]
    for name in names:
        row = "random" if name in seeds and len(seeds) > 1 else name
        rows.setdefault(row, []).append(name)
    return rows


def summarise(
    scored: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Any]], protocol: Protocol, seed: int
) -> tuple[tuple[MethodResult, ...], tuple[Pair, ...]]:
    """Return every method's result, and the differences of all pairs on the same samples."""
    rows = rows_of_methods(list(measured[0]["methods"]))
    yardsticks = (LEAVE_ONE_OUT, *scored[0].get("controls", ()))  # older journals know of none
    bootstrap = Bootstrap(len(measured), seed)
    fractions = protocol.fractions()
    whole = {
        row: {
            key: [np.mean([one["methods"][name][key] for name in names], axis=0) for one in measured]
            for key in (*CURVES, "comprehensiveness", "sufficiency")
        }
        for row, names in rows.items()
    }
    areas = {row: _areas(found) for row, found in whole.items()}
    points = {row: {name: _shown(found[name], fractions) for name in CURVES} for row, found in whole.items()}
    pairs = list(itertools.combinations(rows, 2))
    own = {row: bootstrap.add(areas[row]) for row in rows}
    bands = {row: {name: bootstrap.add(points[row][name]) for name in CURVES} for row in rows}
    between = {(a, b): bootstrap.add(areas[a] - areas[b]) for a, b in pairs}
    results = [
        MethodResult(
            row,
            **dict(zip(METRICS, bootstrap.intervals(own[row]), strict=True)),
            conservation=_conservation(scored, names[0]),
            curves={name: bootstrap.curve(fractions, band) for name, band in bands[row].items()},
            reference=row in yardsticks,
        )
        for row, names in rows.items()
    ]
    differences = [
        Pair(metric, a, b, one.mean, one.low, one.high)
        for (a, b), where in between.items()
        for metric, one in zip(METRICS, bootstrap.intervals(where), strict=True)
    ]
    return tuple(results), tuple(differences)


def _areas(found: Mapping[str, Sequence[np.ndarray]]) -> np.ndarray:
    """Return a sample's number for each metric, from as many points as it has; rows are samples."""
    columns = [[area(one, np.linspace(0, 1, len(one))) for one in found[name]] for name in CURVES]
    return np.stack([*columns, found["comprehensiveness"], found["sufficiency"]], axis=1)


def _shown(curves: Sequence[np.ndarray], fractions: Sequence[float]) -> np.ndarray:
    """Return samples' curves at the shares of the mean curve, between their own points by straight lines."""
    return np.stack([np.interp(fractions, np.linspace(0, 1, len(one)), one) for one in curves])


def _conservation(scored: Sequence[Mapping[str, Any]], name: str) -> Conservation:
    outputs = np.array([one["output"] for one in scored])
    return conservation(outputs, np.array([sum(one["scores"][name]) for one in scored]))
