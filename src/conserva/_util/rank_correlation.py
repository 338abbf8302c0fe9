"""Rank correlations: Spearman's rho and Kendall's tau-b."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation; nan if all numbers of one are equal, or if there are fewer than two."""
    return cosine(centred_ranks(a), centred_ranks(b))


def centred_ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each number minus the mean rank; equal numbers share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, first = [0.0] * len(values), 0
    for _, equal in groupby(order, key=values.__getitem__):
        members = list(equal)
        for i in members:
            ranks[i] = first + (len(members) - len(values)) / 2
        first += len(members)
    return ranks


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the cosine of two vectors, which of centred ranks is their correlation; nan if one is 0."""
    product = math.sqrt(math.fsum(x * x for x in a) * math.fsum(x * x for x in b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / product if product else math.nan


def kendall_tau(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    """Return Kendall's tau-b: concordant minus discordant pairs, divided by the geometric mean of the untied pairs.

    nan if all numbers of one are equal, or if there are fewer than two.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    agreeing = untied_a = untied_b = 0
    for i in range(len(first) - 1):
        x, y = np.sign(first[i + 1 :] - first[i]), np.sign(second[i + 1 :] - second[i])
        agreeing += int(x @ y)
        untied_a += int(np.count_nonzero(x))
        untied_b += int(np.count_nonzero(y))
    return agreeing / math.sqrt(untied_a * untied_b) if untied_a and untied_b else math.nan
