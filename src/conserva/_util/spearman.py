"""Spearman's rank correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby


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
