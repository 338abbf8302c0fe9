"""Means over samples with bootstrap intervals, and how sums of scores follow the output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .evaluation import Conservation, Curve, Interval

RESAMPLES = 10_000
LEVEL = 0.95


class Bootstrap:
    """Draws samples with replacement, the same draws for every method, so that differences are paired."""

    def __init__(self, samples: int, seed: int = 0, resamples: int = RESAMPLES) -> None:
        self.samples, self.seed, self.resamples = samples, seed, resamples

    def _draws(self) -> Iterator[np.ndarray]:
        """Yield how often each sample is drawn, in parts that fit into memory; rows are draws."""
        rng = np.random.default_rng(self.seed)
        at_once = max(1, min(self.resamples, 4_000_000 // self.samples))
        even = np.full(self.samples, 1 / self.samples)
        for start in range(0, self.resamples, at_once):
            yield rng.multinomial(self.samples, even, min(at_once, self.resamples - start)) / self.samples

    def bounds(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the percentile interval of the mean of each column; rows are samples."""
        means = np.concatenate([draw @ values for draw in self._draws()])
        tail = (1 - LEVEL) / 2
        low, high = np.quantile(means, [tail, 1 - tail], axis=0)
        return low, high

    def intervals(self, columns: np.ndarray) -> list[Interval]:
        """Return the mean and interval of each column."""
        low, high = self.bounds(columns)
        means = columns.mean(0)
        return [Interval(float(m), float(a), float(b)) for m, a, b in zip(means, low, high, strict=True)]

    def curve(self, fractions: Sequence[float], values: np.ndarray) -> Curve:
        """Return the mean curve with its band; rows are samples."""
        low, high = self.bounds(values)
        return Curve(tuple(fractions), tuple(values.mean(0).tolist()), tuple(low.tolist()), tuple(high.tolist()))


def area(values: np.ndarray, fractions: Sequence[float]) -> np.ndarray:
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
