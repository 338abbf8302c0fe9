"""Rank correlations in plain loops; 0 where they are not defined."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal values have the mean of their ranks."""
    return [sum(y < x for y in values) + (sum(y == x for y in values) + 1) / 2 for x in values]


def slow_spearman(a: Sequence[float], b: Sequence[float]) -> float:
    x, y = ranks(a), ranks(b)
    mx, my = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((p - mx) * (q - my) for p, q in zip(x, y, strict=True))
    variances = sum((p - mx) ** 2 for p in x) * sum((q - my) ** 2 for q in y)
    return covariance / math.sqrt(variances) if variances else 0.0


def slow_tau(a: Sequence[float], b: Sequence[float]) -> float:
    together = untied_a = untied_b = 0
    for i, j in itertools.combinations(range(len(a)), 2):
        x, y = (a[i] > a[j]) - (a[i] < a[j]), (b[i] > b[j]) - (b[i] < b[j])
        together, untied_a, untied_b = together + x * y, untied_a + abs(x), untied_b + abs(y)
    return together / math.sqrt(untied_a * untied_b) if untied_a and untied_b else 0.0
