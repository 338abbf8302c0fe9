"""Rank correlations between the scores of several explanations of one input."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .._util.spearman import centred_ranks, cosine
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
    ranks = [centred_ranks(explanation.scores) for explanation in shown]
    return tuple(
        tuple(
            _or_none(cosine(first, second)) if one.features == other.features else None
            for other, second in zip(shown, ranks, strict=True)
        )
        for one, first in zip(shown, ranks, strict=True)
    )


def _or_none(correlation: float) -> float | None:
    return None if math.isnan(correlation) else correlation
