"""Mentions of a bias study in their sentences: the most positive, the most negative, cut to what can be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from .._util.text import printable
from ..bias_study.result import BiasStudy, Mention
from .audit_terminal import middle

EACH, ROOM = 2, 220
"""Sentences of one word that a ranking shows, and characters of a sentence that are shown."""


@dataclass(frozen=True)
class Excerpt:
    """A mention with what stands around it."""

    mention: Mention
    before: str
    name: str
    after: str


def excerpt(study: BiasStudy, mention: Mention, room: int = ROOM) -> Excerpt:
    """Return a mention in its sentence; of a long one, what stands around the mention."""
    text = study.sentences[mention.text]
    name = middle(printable(text[mention.start : mention.end]), room)
    before, after = printable(text[: mention.start]), printable(text[mention.end :])
    if len(before) + len(name) + len(after) > room:
        left = max(0, room - len(name))
        head = min(len(before), max(left // 2, left - len(after)))
        before, after = _end(before, head), _end(after[::-1], left - head)[::-1]
    return Excerpt(mention, before, name, after)


def _end(text: str, room: int) -> str:
    """Return the end of a text, from a word's beginning where there is one."""
    if len(text) <= room:
        return text
    kept = text[len(text) - room :]
    _, space, rest = kept.partition(" ")
    return f"… {rest}" if space and rest.strip() else f"…{kept}"


def extremes(study: BiasStudy, most: int) -> tuple[list[Excerpt], list[Excerpt]]:
    """Return the mentions of most relevance above 0 and below 0, few of each word, and no sentence twice."""
    order = sorted(study.mentions, key=lambda one: -one.relevance)
    above = [one for one in order if one.relevance > 0]
    below = [one for one in reversed(order) if one.relevance < 0]
    return _few_of_each(study, above, most), _few_of_each(study, below, most)


def _few_of_each(study: BiasStudy, order: Iterable[Mention], most: int) -> list[Excerpt]:
    seen: Counter[str] = Counter()
    places: set[tuple[str, int]] = set()
    found: list[Excerpt] = []
    for one in order:
        place = study.sentences[one.text], one.start
        if len(found) == most:
            break
        if seen[one.entity] < EACH and place not in places:
            found.append(excerpt(study, one))
            seen[one.entity] += 1
            places.add(place)
    return found
