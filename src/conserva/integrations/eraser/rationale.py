"""Rationales of explanations: scores of the words between spaces, and the words that are chosen by them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import TypeAlias

import numpy as np

from ...errors import Error
from ...evaluation.evidence_measures import finite
from ...results.explanation import Explanation

Spans: TypeAlias = Mapping[int, tuple[int, int]]
"""Feature -> where its characters are in the text."""

_NUMBERS = (int, float, np.integer, np.floating)
_LINE, _WORD = re.compile(r"[^\r\n]+"), re.compile(r"[^ ]+")
_BORDER = " | "
"""What is between the texts of a pair in the text of its explanation."""


def word_scores(explanation: Explanation) -> list[float]:
    """Return the score of each word of the text between spaces: the sum of the scores of its tokens.

    ERASER's documents are lines of words that are separated by spaces; other white space is a part of a word. Special
    tokens belong to no word, and their scores are left out. A word without tokens, such as one that was truncated, has
    the score 0.

    Parameters
    ----------
    explanation
        The explanation of one text, in tokens or words.

    Returns
    -------
    list of float
        One score for each word. For several texts, such as a pair, use `section_scores`.

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
        sections.append(_spans(explanation, name, range(first, first + count)))
        first += count
    bounds = _bounds(explanation.text, sections)
    return [_scores_of_words(explanation, spans, *bound) for spans, bound in zip(sections, bounds, strict=True)]


def _spans(explanation: Explanation, name: str, features: range) -> Spans:
    """Return the features of a text that have characters in it."""
    spans = {i: span for i in features if (span := explanation.offsets[i]) is not None}
    if not spans:
        raise Error(
            f"The explanation of {explanation.text[:40]!r} has no offsets{f' in its {name} text' if name else ''}, "
            "which tell where its features are in the text: explain a text by a model with a fast tokenizer."
        )
    return spans


def _bounds(text: str, sections: Sequence[Spans]) -> Iterator[tuple[int, int]]:
    """Yield where each of the joined texts begins and ends: words at their ends may have no tokens."""
    begin = 0
    for spans, following in pairwise(sections):
        end, after = max(stop for _, stop in spans.values()), min(start for start, _ in following.values())
        border = text.find(_BORDER, end, after)
        yield begin, border if border >= 0 else end
        begin = border + len(_BORDER) if border >= 0 else after
    yield begin, len(text)


def _words(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the words of a part of a text, split as by ERASER: into lines, stripped of white space, and at spaces."""
    for line in _LINE.finditer(text, begin, end):
        length, indented = len(line[0].strip()), len(line[0]) - len(line[0].lstrip())
        start = line.start() + indented
        yield from (match.span() for match in _WORD.finditer(text, start, start + length))


def _scores_of_words(explanation: Explanation, spans: Spans, begin: int, end: int) -> list[float]:
    words = list(_words(explanation.text, begin, end))
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
        if not isinstance(threshold, _NUMBERS) or math.isnan(threshold):
            raise Error(f"threshold={threshold!r}: give a number.")
        return [bool(chosen) for chosen in numbers > threshold]
    if isinstance(top, (int, np.integer)) and not isinstance(top, bool) and top >= 1:
        count = int(top)
    elif isinstance(top, _NUMBERS) and 0 < top < 1:
        count = math.ceil(round(float(top) * len(numbers), 9))  # 0.07 * 100 is a little more than 7
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
