"""Excerpts of a bias study: the mentions with the most positive and the most negative relevance, in their sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from .._util.text import printable
from ..bias_study.result import BiasStudy, Mention
from .audit_wording import shortened

EACH, ROOM = 2, 220
"""Maximum number of excerpts of one word, and maximum length of an excerpt."""


@dataclass(frozen=True)
class Excerpt:
    """A mention and the text around it."""

    mention: Mention
    before: str
    name: str
    after: str


def excerpt(study: BiasStudy, mention: Mention, room: int = ROOM) -> Excerpt:
    """Return a mention in its sentence, which is cut to about `room` characters."""
    text = study.sentences[mention.text]
    name = shortened(printable(text[mention.start : mention.end]), room)
    before, after = printable(text[: mention.start]), printable(text[mention.end :])
    if len(before) + len(name) + len(after) > room:
        remaining = max(0, room - len(name))
        head = min(len(before), max(remaining // 2, remaining - len(after)))
        before, after = _end(before, head), _end(after[::-1], remaining - head)[::-1]
    return Excerpt(mention, before, name, after)


def _end(text: str, room: int) -> str:
    """Return the end of a text, starting at a word if possible."""
    if len(text) <= room:
        return text
    kept = text[len(text) - room :]
    _, space, rest = kept.partition(" ")
    return f"… {rest}" if space and rest.strip() else f"…{kept}"


def extremes(study: BiasStudy, most: int) -> tuple[list[Excerpt], list[Excerpt]]:
    """Return the mentions with the most positive and the most negative relevance, at most `EACH` of one word."""
    order = sorted(study.mentions, key=lambda mention: -mention.relevance)
    above = [mention for mention in order if mention.relevance > 0]
    below = [mention for mention in reversed(order) if mention.relevance < 0]
    return _few_of_each(study, above, most), _few_of_each(study, below, most)


def _few_of_each(study: BiasStudy, order: Iterable[Mention], most: int) -> list[Excerpt]:
    counts: Counter[str] = Counter()
    seen_sentences: set[tuple[str, int]] = set()
    excerpts: list[Excerpt] = []
    for mention in order:
        sentence = study.sentences[mention.text], mention.start
        if len(excerpts) == most:
            break
        if counts[mention.entity] < EACH and sentence not in seen_sentences:
            excerpts.append(excerpt(study, mention))
            counts[mention.entity] += 1
            seen_sentences.add(sentence)
    return excerpts
