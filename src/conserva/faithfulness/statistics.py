"""Means over samples with bootstrap intervals, and how sums of scores follow the output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from .evaluation import Conservation, Curve, Interval

RESAMPLES = 10_000
LEVEL = 0.95


class Bootstrap:
    """Draws samples with replacement, the same draws for every method, so that differences are paired.

    Columns are added first and drawn all at once: `add` returns where they are, `interval` and `curve` read them.
    """

    def __init__(self, samples: int, seed: int = 0, resamples: int = RESAMPLES) -> None:
        self.samples, self.seed, self.resamples = samples, seed, resamples
        self._columns: list[np.ndarray] = []
        self._width = 0

    def add(self, values: np.ndarray) -> slice:
        """Take columns in; rows are samples."""
        self._columns.append(values)
        self._width += values.shape[1]
        return slice(self._width - values.shape[1], self._width)

    @cached_property
    def _found(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The mean of each column, and the bounds of its percentile interval."""
        values = np.concatenate(self._columns, axis=1)
        rng = np.random.default_rng(self.seed)
        even = np.full(self.samples, 1 / self.samples)
        at_once = min(500, max(1, 4_000_000 // self.samples))
        means = np.empty((self._width, self.resamples))
        for start in range(0, self.resamples, at_once):
            end = min(start + at_once, self.resamples)
            means[:, start:end] = (rng.multinomial(self.samples, even, end - start) / self.samples @ values).T
        tail = (1 - LEVEL) / 2
        low, high = np.stack([np.quantile(one, [tail, 1 - tail]) for one in means], axis=1)
        return values.mean(0), low, high

    def intervals(self, where: slice) -> list[Interval]:
        """Return the mean and interval of each column."""
        columns = zip(*(found[where].tolist() for found in self._found), strict=True)
        return [Interval(*column) for column in columns]

    def curve(self, fractions: Sequence[float], where: slice) -> Curve:
        """Return the mean curve with its band."""
        mean, low, high = (tuple(found[where].tolist()) for found in self._found)
        return Curve(tuple(fractions), mean, low, high)


def area(values: np.ndarray, fractions: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the area under each row, by trapezoids."""
    middles: np.ndarray = (values[..., 1:] + values[..., :-1]) / 2
    return middles @ np.diff(fractions)


def conservation(outputs: np.ndarray, sums: np.ndarray) -> Conservation:
    """Return correlation and slope of the sums on the outputs, and the mean gap."""
    correlation = slope = None
    if len(outputs) > 1 and np.ptp(outputs) > 0:
        centred = outputs - outputs.mean()
        slope = float(centred @ (sums - sums.mean()) / (centred @ centred))
        if np.std(sums) > 1e-6 * float(np.abs(sums).max()):
            correlation = float(np.corrcoef(outputs, sums)[0, 1])
    gap = float(np.abs(outputs - sums).mean())
    return Conservation(correlation, slope, gap, tuple(outputs.tolist()), tuple(sums.tolist()))
