"""Means over samples with bootstrap intervals, and the relation of sums of scores to the output."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from .comparison import Interval
from .result import Conservation, Curve

RESAMPLES = 10_000
LEVEL = 0.95

POINTS = 2000
"""The maximum number of points of the scatter plot in a result."""

_BLOCK = 4096
"""The number of samples of a table that are in memory at a time."""


class Table:
    """Numbers, samples x columns, in a temporary file, since they may not fit into memory."""

    def __init__(self, width: int) -> None:
        self.width, self.samples = width, 0
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open for as long as the table exists

    @classmethod
    def of(cls, values: np.ndarray) -> Table:
        """Return a table with the rows of an array."""
        table = cls(values.shape[1])
        for row in values:
            table.append(row)
        return table

    def append(self, row: np.ndarray) -> None:
        """Append the row of a sample."""
        self._file.write(np.ascontiguousarray(row, np.float64).tobytes())
        self.samples += 1

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the table in blocks of rows, each with its slice of samples."""
        self._file.seek(0)
        for start in range(0, self.samples, _BLOCK):
            rows = slice(start, min(start + _BLOCK, self.samples))
            content = self._file.read((rows.stop - start) * self.width * 8)
            yield rows, np.frombuffer(content).reshape(-1, self.width)


class Bootstrap:
    """A bootstrap over samples, with the same resamples for all columns, so that differences of columns are paired."""

    def __init__(self, table: Table, seed: int = 0, resamples: int = RESAMPLES) -> None:
        self.table, self.seed, self.resamples = table, seed, resamples

    @cached_property
    def _means(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean of each column, and the means of its resamples, columns x resamples."""
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
        """Return the mean and interval of the columns in `where`, or of their differences to the columns in `less`."""
        mean, draws = (values[where] if less is None else values[where] - values[less] for values in self._means)
        tail = (1 - LEVEL) / 2
        bounds = np.quantile(draws, [tail, 1 - tail], axis=1)
        return [Interval(*numbers) for numbers in zip(mean.tolist(), *bounds.tolist(), strict=True)]

    def curve(self, fractions: Sequence[float], where: slice) -> Curve:
        """Return the mean curve with its confidence band."""
        points = self.intervals(where)
        mean, low, high = (tuple(getattr(point, name) for point in points) for name in ("mean", "low", "high"))
        return Curve(tuple(fractions), mean, low, high)


def area(values: np.ndarray, fractions: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the area under each row, by the trapezoidal rule."""
    middles: np.ndarray = (values[..., 1:] + values[..., :-1]) / 2
    return middles @ np.diff(fractions)


def conservation(outputs: np.ndarray, sums: np.ndarray) -> Conservation:
    """Return correlation and regression slope of sums on outputs, the mean distance, and points for a scatter plot."""
    correlation = slope = None
    if len(outputs) > 1 and np.ptp(outputs) > 0:
        centred = outputs - outputs.mean()
        slope = float(centred @ (sums - sums.mean()) / (centred @ centred))
        if np.std(sums) > 1e-6 * float(np.abs(sums).max()):
            correlation = float(np.corrcoef(outputs, sums)[0, 1])
    distance = float(np.abs(outputs - sums).mean())
    shown = np.linspace(0, len(outputs) - 1, min(POINTS, len(outputs))).round().astype(int)
    return Conservation(correlation, slope, distance, tuple(outputs[shown].tolist()), tuple(sums[shown].tolist()))
