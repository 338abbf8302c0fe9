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
    bootstrap = Bootstrap(len(measured), seed)
    fractions = protocol.fractions()
    points = {
        row: {
            key: np.mean([[one["methods"][name][key] for one in measured] for name in names], axis=0)
            for key in (*CURVES, "comprehensiveness", "sufficiency")
        }
        for row, names in rows.items()
    }
    areas = {row: _areas(found, fractions) for row, found in points.items()}
    intervals = bootstrap.intervals(np.concatenate([areas[row] for row in rows], axis=1))
    results = []
    for i, (row, names) in enumerate(rows.items()):
        own = dict(zip(METRICS, intervals[i * len(METRICS) : (i + 1) * len(METRICS)], strict=True))
        curves = {name: bootstrap.curve(fractions, points[row][name]) for name in CURVES}
        kept = _conservation(scored, names[0])
        results.append(MethodResult(row, **own, conservation=kept, curves=curves, reference=row == LEAVE_ONE_OUT))
    return tuple(results), _pairs(bootstrap, areas)


def _areas(found: Mapping[str, np.ndarray], fractions: Sequence[float]) -> np.ndarray:
    """Return a sample's number for each metric; rows are samples."""
    columns = [area(found[name], fractions) for name in CURVES]
    return np.stack([*columns, found["comprehensiveness"], found["sufficiency"]], axis=1)


def _conservation(scored: Sequence[Mapping[str, Any]], name: str) -> Conservation:
    outputs = np.array([one["output"] for one in scored])
    return conservation(outputs, np.array([sum(one["scores"][name]) for one in scored]))


def _pairs(bootstrap: Bootstrap, areas: Mapping[str, np.ndarray]) -> tuple[Pair, ...]:
    pairs = list(itertools.combinations(areas, 2))
    if not pairs:
        return ()
    found = bootstrap.intervals(np.concatenate([areas[a] - areas[b] for a, b in pairs], axis=1))
    names = [(metric, a, b) for a, b in pairs for metric in METRICS]
    return tuple(Pair(*name, one.mean, one.low, one.high) for name, one in zip(names, found, strict=True))
