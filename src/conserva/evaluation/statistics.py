"""Means over samples with bootstrap intervals, and how sums of scores follow the output."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from .result import Conservation, Curve, Interval

RESAMPLES = 10_000
LEVEL = 0.95

POINTS = 2000
"""How many samples' outputs and sums a result keeps for its scatter plot."""

_BLOCK = 4096
"""How many samples of a table are in memory at a time."""


class Table:
    """Numbers, samples x columns, on disk: there may be more samples than memory holds."""

    def __init__(self, width: int) -> None:
        self.width, self.samples = width, 0
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it is open for as long as the table is there

    @classmethod
    def of(cls, values: np.ndarray) -> Table:
        """Return a table of an array."""
        table = cls(values.shape[1])
        for row in values:
            table.append(row)
        return table

    def append(self, row: np.ndarray) -> None:
        """Add a sample."""
        self._file.write(np.ascontiguousarray(row, np.float64).tobytes())
        self.samples += 1

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the numbers of some samples at a time, and which samples they are."""
        self._file.seek(0)
        for start in range(0, self.samples, _BLOCK):
            rows = slice(start, min(start + _BLOCK, self.samples))
            content = self._file.read((rows.stop - start) * self.width * 8)
            yield rows, np.frombuffer(content).reshape(-1, self.width)


class Bootstrap:
    """Draws samples with replacement, the same draws for every column, so that differences of columns are paired."""

    def __init__(self, table: Table, seed: int = 0, resamples: int = RESAMPLES) -> None:
        self.table, self.seed, self.resamples = table, seed, resamples

    @cached_property
    def _means(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean of each column, and its means over all draws, columns x draws."""
        rng, samples = np.random.default_rng(self.seed), self.table.samples
        even = np.full(samples, 1 / samples)
        at_once = min(500, max(1, 4_000_000 // samples))
        means = np.zeros((self.table.width, self.resamples))
        for start in range(0, self.resamples, at_once):
            draws = slice(start, min(start + at_once, self.resamples))
            weights = rng.multinomial(samples, even, draws.stop - start) / samples
            for rows, values in self.table.blocks():
                means[:, draws] += (weights[:, rows] @ values).T
        return sum(values.sum(0) for _, values in self.table.blocks()) / samples, means

    def intervals(self, where: slice, less: slice | None = None) -> list[Interval]:
        """Return the mean and interval of some columns, or of their differences to as many others."""
        mean, draws = (found[where] if less is None else found[where] - found[less] for found in self._means)
        tail = (1 - LEVEL) / 2
        bounds = np.quantile(draws, [tail, 1 - tail], axis=1)
        return [Interval(*one) for one in zip(mean.tolist(), *bounds.tolist(), strict=True)]

    def curve(self, fractions: Sequence[float], where: slice) -> Curve:
        """Return the mean curve with its band."""
        found = self.intervals(where)
        mean, low, high = (tuple(getattr(one, name) for one in found) for name in ("mean", "low", "high"))
        return Curve(tuple(fractions), mean, low, high)


def area(values: np.ndarray, fractions: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the area under each row, by trapezoids."""
    middles: np.ndarray = (values[..., 1:] + values[..., :-1]) / 2
    return middles @ np.diff(fractions)


def conservation(outputs: np.ndarray, sums: np.ndarray) -> Conservation:
    """Return correlation and slope of the sums on the outputs, the mean gap, and points for a scatter plot."""
    correlation = slope = None
    if len(outputs) > 1 and np.ptp(outputs) > 0:
        centred = outputs - outputs.mean()
        slope = float(centred @ (sums - sums.mean()) / (centred @ centred))
        if np.std(sums) > 1e-6 * float(np.abs(sums).max()):
            correlation = float(np.corrcoef(outputs, sums)[0, 1])
    gap = float(np.abs(outputs - sums).mean())
    shown = np.linspace(0, len(outputs) - 1, min(POINTS, len(outputs))).round().astype(int)
    return Conservation(correlation, slope, gap, tuple(outputs[shown].tolist()), tuple(sums[shown].tolist()))
