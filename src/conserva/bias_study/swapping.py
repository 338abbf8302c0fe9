"""Counterfactuals: other names in an entity's place, asked of the model itself.

An explanation says that a name speaks for the first class; if so, the contrast falls when another name stands there.
So `change` is the contrast of the text as it is, less the mean contrast with other names: above 0 for a name that
speaks for the first class more than others do, below 0 for one that speaks against it. It is compared with the
entity's relevance less the mean of all mentions, because what is put in its place is a name, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np
import torch

from ..engine.targets import read_target
from ..engine.untouched import untouched
from ..errors import Error
from ..tasks.batches import by_length
from ..tasks.task import Task
from .result import Entity, Mention, Swap
from .testing import interval_of

MOST = 500
"""Of an entity with more mentions, so many are drawn at random: enough for a narrow interval, and soon asked."""

_ROUNDING = 1e-5
"""Changes below this share of the contrast are 0: a text in another batch differs by as much."""

_APOSTROPHES = "'\u2019"
_POSSESSIVE = re.compile(rf"\s?[{_APOSTROPHES}]s?$", re.IGNORECASE)
_FIRST_LETTER = re.compile(rf"(?<![\w{_APOSTROPHES}])\w")


def swaps_of(
    task: Task,
    target: Any,
    sentences: Mapping[int, str],
    mentions: Sequence[Mention],
    entities: Sequence[Entity],
    count: int = 10,
    seed: int = 0,
    batch_tokens: int = 2048,
    per_mention: int = 5,
) -> tuple[Swap, ...]:
    """Return the swaps of the entities that stand out most: flagged ones first, then the farthest from the mean.

    Parameters
    ----------
    task, target
        The model, and the contrast that was explained.
    sentences
        Number of a text -> the text, for every text with a mention.
    mentions, entities
        What was collected, and what `entities_of` made of it; entities that were too rare to be tested stay out.
    count
        How many entities are swapped at most.
    seed
        Of the names that are drawn, and of the intervals, which draw mentions with replacement.
    batch_tokens
        How many tokens the model is given at once.
    per_mention
        How many names take a mention's place, one after another: drawn among the entities of all other groups, or all
        of these if they are fewer. Where there is no other group there are no swaps. Texts that are too long for the
        model are cut, as they would be for an explanation.
    """
    for name, number in (("count", count), ("batch_tokens", batch_tokens), ("per_mention", per_mention)):
        if number < 1:
            raise Error(f"{name}={number!r} is less than 1: nothing would be swapped.")
    if not mentions:
        raise Error("There is no mention to swap: no text holds a word of any group.")
    overall = mean(one.relevance for one in mentions)
    chosen = {
        one: variants
        for place, one in enumerate(_standing_out(entities, overall)[:count])
        if (variants := _variants(one, sentences, mentions, np.random.default_rng([seed, place]), per_mention))
    }
    texts = (text for variants in chosen.values() for own, others in variants for text in (own, *others))
    outputs = _outputs(task, target, texts, batch_tokens)
    found = []
    for one, variants in chosen.items():
        changes = [_change(outputs[own], [outputs[text] for text in others]) for own, others in variants]
        change = interval_of(changes, seed)
        excess = one.mean.mean - overall
        agrees = (excess > 0 and change.low > 0) or (excess < 0 and change.high < 0)
        found.append(Swap(one.name, one.group, len(variants), one.mean.mean, change, agrees))
    return tuple(found)


def replaced(text: str, start: int, end: int, entity: str, other: str) -> str:
    """Return a text with another name in the place of one: a possessive stays, and so does the way it is written."""
    if not 0 <= start < end <= len(text):
        raise Error(f"The mention of {entity!r} at {start}:{end} lies outside of its text {text[:60]!r}.")
    old = text[start:end]
    possessive = _POSSESSIVE.search(old) if not _POSSESSIVE.search(entity) else None
    kept = possessive.group() if possessive else ""
    return text[:start] + _written_as(old.removesuffix(kept), other) + kept + text[end:]


def _written_as(old: str, new: str) -> str:
    """Return a name in the case of another: in small letters, in capitals, or with a capital for each word."""
    if old.islower():
        return new.lower()
    if old.isupper() and sum(map(str.isalpha, old)) > 1:
        return new.upper()
    return _FIRST_LETTER.sub(lambda letter: letter.group().upper(), new)


def _standing_out(entities: Sequence[Entity], overall: float) -> list[Entity]:
    tested = [one for one in entities if one.p is not None]
    return sorted(tested, key=lambda one: (not one.flagged, -abs(one.mean.mean - overall), one.name, one.group))


def _variants(
    entity: Entity,
    sentences: Mapping[int, str],
    mentions: Sequence[Mention],
    rng: np.random.Generator,
    per_mention: int,
) -> list[tuple[str, list[str]]]:
    """Return for each mention of an entity its text, and the text with other names in its place."""
    others = {one.entity for one in mentions if one.group != entity.group}
    names = sorted(name for name in others if name.casefold() != entity.name.casefold())
    if not names:
        return []
    own = [one for one in mentions if (one.group, one.entity) == (entity.group, entity.name)]
    if len(own) > MOST:
        own = [own[i] for i in np.sort(rng.choice(len(own), MOST, replace=False))]
    found = []
    for one in own:
        if one.text not in sentences:
            raise Error(f"sentences has no text {one.text}, which mentions {one.entity!r}: give every text's.")
        text = sentences[one.text]
        drawn = [names[i] for i in rng.choice(len(names), min(per_mention, len(names)), replace=False)]
        found.append((text, [replaced(text, one.start, one.end, one.entity, name) for name in drawn]))
    return found


def _outputs(task: Task, target: Any, texts: Iterable[str], tokens: int) -> dict[str, float]:
    """Return the contrast of every text; texts of one length go together, and none is asked for twice."""
    encoded = [(task.encode(text, truncate=True), text) for text in dict.fromkeys(texts)]
    found = {}
    for numbers in by_length([len(one) for one, _ in encoded], tokens):
        batch = [encoded[i] for i in numbers]
        with untouched(task.model), torch.no_grad():
            output = task.model(**task.batch([one for one, _ in batch]))
            outputs = read_target(output, target, task.labels, len(batch)).double().tolist()
        for (_, text), number in zip(batch, outputs, strict=True):
            if not np.isfinite(number):
                raise Error(f"The model's answer to the text beginning {text[:40]!r} has nan or inf.")
            found[text] = number
    return found


def _change(own: float, others: Sequence[float]) -> float:
    change = own - mean(others)
    return change if abs(change) > _ROUNDING * max(1.0, abs(own)) else 0.0
