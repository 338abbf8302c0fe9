"""Agreement of the scores of one sample with known evidence: the features that determine the answer.

No measure depends on the order of positions: features with equal scores are treated alike, as each measure describes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ..errors import Error

Scores: TypeAlias = Sequence[float] | np.ndarray
Flags: TypeAlias = Sequence[bool] | Sequence[int] | np.ndarray


def top1(scores: Scores, evidence: Flags) -> float:
    """Return whether the highest score is in the evidence, as 1 or 0; of equal highest scores all must be.

    Parameters
    ----------
    scores
        The score of each feature.
    evidence
        Which features are the evidence.

    Returns
    -------
    float
        nan if no feature is evidence, as for the other measures.

    Examples
    --------
    >>> from conserva.evaluation.evidence_measures import top1
    >>> top1([0.1, 2.0, 1.0], [False, True, True]), top1([1.0, 1.0, 1.0], [False, True, True])
    (1.0, 0.0)
    """
    share = pointing_game(scores, evidence)
    return share if math.isnan(share) else float(share == 1)


def pointing_game(scores: Scores, evidence: Flags) -> float:
    """Return the probability that the highest score is in the evidence, if one of equal highest scores is drawn.

    This is the pointing game (Zhang et al. 2018) in expectation over the order of ties.

    Examples
    --------
    >>> from conserva.evaluation.evidence_measures import pointing_game
    >>> pointing_game([2.0, 2.0, 1.0], [False, True, True])
    0.5
    """
    numbers, truth = _validated(scores, evidence)
    return float(truth[numbers == numbers.max()].mean()) if truth.any() else math.nan


def iou(scores: Scores, evidence: Flags) -> float:
    """Return the intersection over union of the evidence and as many features with the highest scores.

    If several equal scores compete for the last places, each is counted in part: of three for two places, each to 2/3.

    Examples
    --------
    >>> from conserva.evaluation.evidence_measures import iou
    >>> iou([3.0, 2.0, 1.0, 0.0], [False, True, True, False])
    0.3333333333333333
    """
    numbers, truth = _validated(scores, evidence)
    if not truth.any():
        return math.nan
    size = int(truth.sum())
    last = np.sort(numbers)[-size]
    above, equal = numbers > last, numbers == last
    return jaccard(above + equal * ((size - above.sum()) / equal.sum()), truth)


def average_precision(scores: Scores, evidence: Flags) -> float:
    """Return the mean of the precision at each feature of the evidence, from the highest score down.

    Features with equal scores enter together, with one precision, as in scikit-learn. Equal scores of all features have
    the share of the evidence.

    Examples
    --------
    >>> from conserva.evaluation.evidence_measures import average_precision
    >>> average_precision([3.0, 2.0, 1.0, 0.0], [True, False, False, True])
    0.75
    """
    numbers, truth = _validated(scores, evidence)
    if not truth.any():
        return math.nan
    precision, recall = precision_and_recall(numbers, truth)
    return float(np.diff(recall, prepend=0.0) @ precision)


def precision_and_recall(scores: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the precision and the recall of all features down to each distinct score, from the highest."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(truth[order])
    last = np.append(scores[order][1:] != scores[order][:-1], True)  # the last feature of each score
    return (hits / np.arange(1, len(hits) + 1))[last], (hits / hits[-1])[last]


def jaccard(chosen: np.ndarray, truth: np.ndarray) -> float:
    """Return the intersection of two sets of features over their union; nan if both are empty.

    Features can be chosen in part, by a number from 0 to 1.
    """
    either = float(np.maximum(chosen, truth).sum())
    return float(np.minimum(chosen, truth).sum()) / either if either else math.nan


def _validated(scores: Scores, evidence: Flags) -> tuple[np.ndarray, np.ndarray]:
    numbers, truth = finite(scores, "scores"), flags(evidence, "evidence")
    same_length(scores=numbers, evidence=truth)
    return numbers, truth


def finite(values: Scores, name: str) -> np.ndarray:
    """Return finite numbers as an array; `name` is what an error calls them."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise Error(f"{name}={values!r:.60}: give a list of numbers.") from None
    if numbers.ndim != 1 or not len(numbers) or not np.isfinite(numbers).all():
        raise Error(f"{name}={values!r:.60}: give a list of one or more finite numbers.")
    return numbers


def flags(values: Flags, name: str, noun: str = "feature") -> np.ndarray:
    """Return flags, or numbers that are 0 or 1, as booleans; `noun` is what an error calls what they stand for."""
    array = np.asarray(values)
    if array.ndim != 1 or not len(array) or not np.isin(array, (0, 1)).all():
        raise Error(f"{name}={values!r:.60}: give True or False for each {noun}.")
    return array.astype(bool)


def same_length(noun: str = "feature", **arrays: np.ndarray) -> None:
    """Raise an error unless two arrays have an entry for each of the same features."""
    (a, first), (b, second) = arrays.items()
    if len(first) != len(second):
        owner = "text" if noun == "word" else "sample"
        raise Error(
            f"{a} has {len(first)} {noun}s and {b} {len(second)}: give one entry for each {noun} of the same {owner}."
        )
