"""Rank correlations between the scores of several explanations of one input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from .explanation import Explanation


def rank_correlations(explanations: Sequence[Explanation]) -> tuple[tuple[float | None, ...], ...]:
    """Return Spearman's rank correlation of the scores for each pair of methods, without special features.

    Returns
    -------
    tuple of tuple of float or None
        One row and one column for each explanation. None where it is not defined: all scores of a method are equal, or
        the two explanations do not have the same features.
    """
    shown = [explanation.visible() for explanation in explanations]
    ranks = [_centred_ranks(explanation.scores) for explanation in shown]
    return tuple(
        tuple(
            _cosine(first, second) if one.features == other.features else None
            for other, second in zip(shown, ranks, strict=True)
        )
        for one, first in zip(shown, ranks, strict=True)
    )


def _centred_ranks(scores: Sequence[float]) -> list[float]:
    """Return the rank of each score minus the mean rank; equal scores share the mean of their ranks."""
    order = sorted(range(len(scores)), key=scores.__getitem__)
    ranks, first = [0.0] * len(scores), 0
    for _, equal in groupby(order, key=scores.__getitem__):
        members = list(equal)
        for i in members:
            ranks[i] = first + (len(members) - len(scores)) / 2
        first += len(members)
    return ranks


def _cosine(first: Sequence[float], second: Sequence[float]) -> float | None:
    product = math.sqrt(math.fsum(x * x for x in first) * math.fsum(x * x for x in second))
    return math.fsum(x * y for x, y in zip(first, second, strict=True)) / product if product else None
