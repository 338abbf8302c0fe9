"""Rationales of explanations: scores of the words between white space, and the words that are chosen by them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from ...errors import Error
from ...results.explanation import Explanation

_WORD = re.compile(r"\S+")


def word_scores(explanation: Explanation) -> list[float]:
    """Return the score of each word of the text between white space: the sum of the scores of its tokens.

    ERASER's documents are texts whose tokens are separated by white space. Special tokens belong to no word, and their
    scores are left out. A word without tokens has the score 0.

    Parameters
    ----------
    explanation
        The explanation of one text, in tokens or words.

    Returns
    -------
    list of float
        One score for each of `explanation.text.split()`. For several texts, such as a pair, use `section_scores`.

    Examples
    --------
    >>> from conserva.integrations.eraser import word_scores
    >>> one = conserva.explain(conserva.load(), "a joy.")
    >>> len(word_scores(one)), "a joy.".split()
    (2, ['a', 'joy.'])
    """
    sections = section_scores(explanation)
    if len(sections) != 1:
        raise Error(f"The explanation has {len(sections)} texts: each has its own words. Use section_scores.")
    return sections[0]


def section_scores(explanation: Explanation) -> list[list[float]]:
    """Return the scores of the words, as `word_scores`, for each of the texts of an explanation."""
    sections = []
    first = 0
    for name, count in explanation.sections or (("", len(explanation.features)),):
        sections.append(_scores_of_words(explanation, name, range(first, first + count)))
        first += count
    return sections


def _scores_of_words(explanation: Explanation, name: str, features: range) -> list[float]:
    spans = {i: span for i in features if (span := explanation.offsets[i]) is not None}
    if not spans:
        raise Error(
            f"The explanation of {explanation.text[:40]!r} has no offsets{f' in its {name} text' if name else ''}, "
            "which tell where its features are in the text: explain a text by a model with a fast tokenizer."
        )
    begin, end = 0, len(explanation.text)
    if explanation.sections:  # where one of several texts begins is known by its tokens
        begin, end = min(start for start, _ in spans.values()), max(stop for _, stop in spans.values())
    words = [match.span() for match in _WORD.finditer(explanation.text, begin, end)]
    starts, ends = np.array([start for start, _ in words]), np.array([stop for _, stop in words])
    scores = [0.0] * len(words)
    for i, (start, stop) in spans.items():
        inside = np.flatnonzero((starts < stop) & (ends > start)).tolist()
        if len(inside) > 1:
            raise Error(
                f"Feature {i}, {explanation.features[i]!r:.40}, has {len(inside)} words: give the explanation in "
                "tokens or words, before sentences()."
            )
        for word in inside:
            scores[word] += explanation.scores[i]
    return scores


def hard_rationale(
    scores: Sequence[float] | np.ndarray, *, top: int | float | None = None, threshold: float | None = None
) -> list[bool]:
    """Return which words are in the rationale, by their scores: the highest, or those above a threshold.

    Parameters
    ----------
    scores
        The score of each word.
    top
        How many words: an integer, or as a share of all words a number between 0 and 1, which is rounded up. Only words
        with a positive score are chosen, as in ferret; of equal scores the first.
    threshold
        Instead of `top`: all words with a score above it.

    Returns
    -------
    list of bool
        True for the words in the rationale.

    Examples
    --------
    >>> from conserva.integrations.eraser import hard_rationale
    >>> hard_rationale([0.5, -2.0, 1.0, 0.1], top=2)
    [True, False, True, False]
    """
    numbers = finite(scores, "scores")
    if (top is None) == (threshold is None):
        raise Error(f"top={top!r} and threshold={threshold!r}: give one of them.")
    if threshold is not None:
        return [bool(chosen) for chosen in numbers > threshold]
    if isinstance(top, float) and 0 < top < 1:
        count = math.ceil(round(top * len(numbers), 9))  # 0.07 * 100 is a little more than 7
    elif isinstance(top, int) and not isinstance(top, bool) and top >= 1:
        count = top
    else:
        raise Error(f"top={top!r}: give a number of words, or a share of them between 0 and 1.")
    chosen = np.zeros(len(numbers), dtype=bool)
    chosen[np.argsort(-numbers, kind="stable")[:count]] = True
    return [bool(one) for one in chosen & (numbers > 0)]


def spans_of(rationale: Sequence[bool] | np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the first word of each run of chosen words, and the word after its last."""
    for chosen, run in groupby(range(len(rationale)), key=lambda i: bool(rationale[i])):
        numbers = list(run)
        if chosen:
            yield numbers[0], numbers[-1] + 1


def finite(values: Sequence[float] | np.ndarray, name: str) -> np.ndarray:
    """Return finite numbers as an array; `name` is what an error calls them."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise Error(f"{name}={values!r:.60}: give a list of numbers.") from None
    if numbers.ndim != 1 or not len(numbers) or not np.isfinite(numbers).all():
        raise Error(f"{name}={values!r:.60}: give a list of one or more finite numbers.")
    return numbers
