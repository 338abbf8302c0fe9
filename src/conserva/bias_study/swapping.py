"""Counterfactuals: the model's output when an entity is replaced by other names.

If the relevance of a name is positive, replacing it should decrease the contrast between the two classes. `change` is
the contrast of the original text minus the mean contrast with other names: positive for a name that increases the
contrast more than other names do, negative for one that decreases it. It is compared with the entity's relevance minus
the mean relevance of all mentions, because the replacements are names as well.
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
"""The maximum number of mentions per entity, drawn at random: enough for a narrow interval."""

_ROUNDING = 1e-5
"""Changes below this fraction of the contrast count as 0: batching alone causes differences of this size."""

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
    """Return the swaps of the most conspicuous entities: flagged ones first, then the farthest from the mean.

    Parameters
    ----------
    task, target
        The model, and the explained contrast.
    sentences
        Index of a text -> the text, for every text with a mention.
    mentions, entities
        The collected mentions, and the result of `entities_of`; entities that were too rare to be tested are ignored.
    count
        The maximum number of entities.
    seed
        The seed of the drawn names, and of the bootstrap intervals over mentions.
    batch_tokens
        The maximum number of tokens in a batch.
    per_mention
        The number of names that replace a mention, each in its own text, drawn from the entities of all other groups.
        With a single group there are no swaps. Texts that are too long are truncated, as for an explanation.
    """
    for name, number in (("count", count), ("batch_tokens", batch_tokens), ("per_mention", per_mention)):
        if number < 1:
            raise Error(f"{name}={number!r} is too small: give 1 or more.")
    if not mentions:
        raise Error("There is no mention to swap: no text contains a word of any group.")
    overall = mean(mention.relevance for mention in mentions)
    chosen = {
        entity: variants
        for rank, entity in enumerate(_standing_out(entities, overall)[:count])
        if (variants := _variants(entity, sentences, mentions, np.random.default_rng([seed, rank]), per_mention))
    }
    texts = (text for variants in chosen.values() for own, others in variants for text in (own, *others))
    outputs = _outputs(task, target, texts, batch_tokens)
    swaps = []
    for entity, variants in chosen.items():
        changes = [_change(outputs[own], [outputs[text] for text in others]) for own, others in variants]
        change = interval_of(changes, seed)
        excess = entity.mean.mean - overall
        agrees = (excess > 0 and change.low > 0) or (excess < 0 and change.high < 0)
        swaps.append(Swap(entity.name, entity.group, len(variants), entity.mean.mean, change, agrees))
    return tuple(swaps)


def replaced(text: str, start: int, end: int, entity: str, other: str) -> str:
    """Return a text with an entity replaced by another name; a possessive ending and the case are kept."""
    if not 0 <= start < end <= len(text):
        raise Error(f"The mention of {entity!r} at {start}:{end} is outside of its text {text[:60]!r}.")
    old = text[start:end]
    possessive = _POSSESSIVE.search(old) if not _POSSESSIVE.search(entity) else None
    kept = possessive.group() if possessive else ""
    return text[:start] + _written_as(old.removesuffix(kept), other) + kept + text[end:]


def _written_as(old: str, new: str) -> str:
    """Return a name in the case of another: lower case, upper case, or capitalised words."""
    if old.islower():
        return new.lower()
    if old.isupper() and sum(map(str.isalpha, old)) > 1:
        return new.upper()
    return _FIRST_LETTER.sub(lambda letter: letter.group().upper(), new)


def _standing_out(entities: Sequence[Entity], overall: float) -> list[Entity]:
    tested = [entity for entity in entities if entity.p is not None]
    return sorted(tested, key=lambda each: (not each.flagged, -abs(each.mean.mean - overall), each.name, each.group))


def _variants(
    entity: Entity,
    sentences: Mapping[int, str],
    mentions: Sequence[Mention],
    rng: np.random.Generator,
    per_mention: int,
) -> list[tuple[str, list[str]]]:
    """Return for each mention of an entity its text, and the text with the mention replaced by other names."""
    others = {mention.entity for mention in mentions if mention.group != entity.group}
    names = sorted(name for name in others if name.casefold() != entity.name.casefold())
    if not names:
        return []
    own = [mention for mention in mentions if (mention.group, mention.entity) == (entity.group, entity.name)]
    if len(own) > MOST:
        own = [own[i] for i in np.sort(rng.choice(len(own), MOST, replace=False))]
    variants = []
    for mention in own:
        if mention.text not in sentences:
            raise Error(
                f"sentences has no text {mention.text}, which mentions {mention.entity!r}: give every text with a "
                "mention."
            )
        text = sentences[mention.text]
        drawn = [names[i] for i in rng.choice(len(names), min(per_mention, len(names)), replace=False)]
        variants.append((text, [replaced(text, mention.start, mention.end, mention.entity, name) for name in drawn]))
    return variants


def _outputs(task: Task, target: Any, texts: Iterable[str], tokens: int) -> dict[str, float]:
    """Return the contrast of every distinct text, in batches of similar length."""
    encoded = [(task.encode(text, truncate=True), text) for text in dict.fromkeys(texts)]
    contrasts = {}
    for numbers in by_length([len(each) for each, _ in encoded], tokens):
        batch = [encoded[i] for i in numbers]
        with untouched(task.model), torch.no_grad():
            output = task.model(**task.batch([each for each, _ in batch]))
            outputs = read_target(output, target, task.labels, len(batch)).double().tolist()
        for (_, text), number in zip(batch, outputs, strict=True):
            if not np.isfinite(number):
                raise Error(f"The model's output for the text beginning {text[:40]!r} has nan or inf.")
            contrasts[text] = number
    return contrasts


def _change(own: float, others: Sequence[float]) -> float:
    change = own - mean(others)
    return change if abs(change) > _ROUNDING * max(1.0, abs(own)) else 0.0
