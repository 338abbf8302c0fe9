"""Agreement of a rationale with that of a human, for one text: the measures of ERASER, and ferret's token IOU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...errors import Error
from ...evaluation.evidence_measures import Flags, finite, flags, jaccard, precision_and_recall, same_length
from .rationale import spans_of


def auprc(scores: Sequence[float] | np.ndarray, rationale: Flags) -> float:
    """Return the area under the precision-recall curve of scores for the words of a human rationale.

    The curve has a point for each distinct score, and begins at a precision of 1; the area is that of trapezoids, as in
    ERASER. Scores that are all equal have the area (1 + share of the words in the rationale) / 2.

    Parameters
    ----------
    scores
        The score of each word.
    rationale
        Which words are in the human rationale.

    Returns
    -------
    float
        nan if no word is in the rationale: recall is then undefined.

    Examples
    --------
    >>> from conserva.integrations.eraser import auprc
    >>> auprc([0.1, 2.0, 1.0], [False, True, True])
    1.0
    """
    numbers = finite(scores, "scores")
    truth = flags(rationale, "rationale", "word")
    same_length("word", scores=numbers, rationale=truth)
    if not truth.any():
        return math.nan
    precision, recall = precision_and_recall(numbers, truth)
    precision, recall = np.append(1.0, precision), np.append(0.0, recall)
    return float(np.diff(recall) @ (precision[1:] + precision[:-1]) / 2)


def token_f1(predicted: Flags, rationale: Flags) -> float:
    """Return the F1 score of the chosen words: the harmonic mean of their precision and recall.

    Parameters
    ----------
    predicted
        Which words are chosen, as by `hard_rationale`.
    rationale
        Which words are in the human rationale.

    Returns
    -------
    float
        nan if both are empty: ERASER leaves such texts out of its means.

    Examples
    --------
    >>> from conserva.integrations.eraser import token_f1
    >>> token_f1([True, True, False], [True, False, False])
    0.6666666666666666
    """
    chosen, truth = _both(predicted=predicted, rationale=rationale)
    return _f1(int((chosen & truth).sum()), int(chosen.sum()), int(truth.sum()))


def token_iou(predicted: Flags, rationale: Flags) -> float:
    """Return the number of words that are chosen and in the rationale, divided by those that are either, as in ferret.

    Parameters
    ----------
    predicted
        Which words are chosen, as by `hard_rationale`.
    rationale
        Which words are in the human rationale.

    Returns
    -------
    float
        nan if both are empty, for which ferret returns 0.

    Examples
    --------
    >>> from conserva.integrations.eraser import token_iou
    >>> token_iou([True, True, False], [True, False, False])
    0.5
    """
    chosen, truth = _both(predicted=predicted, rationale=rationale)
    return jaccard(chosen, truth)


def iou_f1(predicted: Flags, rationale: Flags, threshold: float = 0.5) -> float:
    """Return the F1 score of runs of chosen words that match a run of the human rationale.

    Two runs match if the number of words in both, divided by the number of words in at least one, is `threshold` or
    more, as in ERASER's code.

    Parameters
    ----------
    predicted
        Which words are chosen, as by `hard_rationale`.
    rationale
        Which words are in the human rationale. Adjacent words are one run.
    threshold
        From 0.5 to 1: below, a run could match several.

    Returns
    -------
    float
        nan if both are empty.

    Examples
    --------
    >>> from conserva.integrations.eraser import iou_f1
    >>> iou_f1([True, True, False, True], [True, True, True, False])
    0.6666666666666666
    """
    chosen, truth = _both(predicted=predicted, rationale=rationale)
    if not 0.5 <= threshold <= 1:
        raise Error(f"threshold={threshold!r}: give a number from 0.5 to 1.")
    runs, human = list(spans_of(chosen)), list(spans_of(truth))
    matches = sum(any(_iou(run, other) >= threshold for other in human) for run in runs)
    return _f1(matches, len(runs), len(human))


def _iou(a: tuple[int, int], b: tuple[int, int]) -> float:
    """Return the size of the intersection of two runs, divided by that of their union."""
    both = max(0, min(a[1], b[1]) - max(a[0], b[0]))
    return both / (a[1] - a[0] + b[1] - b[0] - both)


def _f1(both: int, chosen: int, truth: int) -> float:
    return 2 * both / (chosen + truth) if chosen + truth else math.nan


def _both(**given: Flags) -> tuple[np.ndarray, np.ndarray]:
    """Return which words are chosen and which are in the rationale."""
    first, second = (flags(values, name, "word") for name, values in given.items())
    same_length("word", **dict(zip(given, (first, second), strict=True)))
    return first, second
