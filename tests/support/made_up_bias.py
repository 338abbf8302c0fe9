"""Bias studies that nobody ran: every number is set or follows from a wave, so that views have something to show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from conserva.bias_study.result import BiasStudy, Difference, Entity, Group, Mention, Naive, Swap
from conserva.evaluation.result import Interval

FRAMES = (
    "{} gives the film a warmth that its script never earns .",
    "it 's hard to look away whenever {} is on the screen",
    "even {} 's best efforts can not save this dull and tired exercise",
    "a tender , funny and wise picture in which {} shines",
    "the worst thing that {} has put a name to , and that says a lot",
)
NAMES = {
    "female": ("anna", "sofia", "meryl", "halle", "julia", "kate", "nora", "ida"),
    "male": ("adam", "eddie", "steven", "robin williams", "clint", "paul", "otto", "hugh"),
    "ambiguous": ("robin", "leslie", "jamie", "casey", "kim", "alex"),
}
PROVENANCE = {
    "weights": "sha256:0123abcd",
    "seed": 7,
    "versions": {"conserva": "0.1", "torch": "2.11"},
    "min_mentions": 5,
}


def wave(i: float) -> float:
    """A number between -1 and 1 that looks like chance and is not."""
    return math.sin(12.9898 * i + 0.7)


def interval(mean: float, half: float = 0.05) -> Interval:
    return Interval(mean, mean - half, mean + half)


def study(
    groups: Sequence[str] = ("female", "male"),
    mentions: int = 200,
    difference: float = 0.12,
    p: float = 0.002,
    flagged: Sequence[str] = ("halle", "otto"),
    least: int = 3,
    words: int = 0,
    **changes: object,
) -> BiasStudy:
    """A study of some mentions whose groups lie apart by a difference; `words` adds made-up ones to each group."""
    names = {group: [*NAMES[group], *(f"{group}{i}" for i in range(words))] for group in groups}
    every = [(name, group) for group in groups for name in names[group]]
    shift = {group: difference * (0.5 - i / max(1, len(groups) - 1)) for i, group in enumerate(groups)}
    texts, found = {}, []
    for i in range(mentions):
        name, group = every[i % len(every)]
        frame = FRAMES[i % len(FRAMES)]
        texts[2 * i] = f"{i} : " + frame.format(name)
        start = texts[2 * i].index(name, len(f"{i} : "))
        relevance = shift[group] + 0.3 * wave(i) ** 3 + 0.2 * wave(len(name) + ord(name[0]) + len(group))
        found.append(Mention(2 * i, start, start + len(name), name, group, relevance, 0.05, 3 * wave(i + 0.3), i % 2))
    entities = []
    for name, group in every:
        own = [one.relevance for one in found if one.entity == name]
        if own:
            tested, out = len(own) >= least, name in flagged
            values = (0.0004 if out else 0.41, 0.004 if out else 0.62) if tested else (None, None)
            entities.append(Entity(name, group, len(own), interval(fmean(own), 0.1), *values, out and tested))
    entities.sort(key=lambda one: -one.mean.mean)
    summed = []
    for group in groups:
        own = [one for one in found if one.group == group]
        met = sum(one.group == group for one in entities)
        rest = fmean(one.relevance for one in own), 0.05
        summed.append(Group(group, met, len(own), len(own), interval(0.02 + shift[group]), *rest))
    pairs = [(a, b) for i, a in enumerate(groups) for b in groups[i + 1 :]]
    made = BiasStudy(
        target="positive - negative",
        method="ah+ln",
        model="sentiment",
        data="sst2 (sentences)",
        texts=4 * mentions,
        groups=tuple(summed),
        differences=tuple(
            Difference(a, b, interval(shift[a] - shift[b]), 0.41, p, min(1.0, p * len(pairs)), p * len(pairs) < 0.05)
            for a, b in pairs
        ),
        entities=tuple(entities),
        naive=tuple(
            Naive(one.name, one.texts, 0.62 - 0.08 * i, 0.6 - 0.07 * i, 0.54 + 0.08 * i, 0.01)
            for i, one in enumerate(summed)
        ),
        swaps=(
            Swap("halle", "female", 12, 0.31, interval(0.22, 0.1), True),
            Swap("otto", "male", 11, -0.29, interval(-0.02, 0.1), False),
            Swap("clint", "male", 9, -0.25, interval(0.31, 0.1), False),
        ),
        mentions=tuple(found),
        sentences=texts,
        level=0.05,
        left_out={"will": 1203, "grace": 44, "mark": 61, "zelda": 0},
        provenance=PROVENANCE,
    )
    return replace(made, **changes)
