"""The words, numbers and rows that the views of a bias study use alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median

from .._util.text import displayed
from ..bias_study.result import BiasStudy, Difference, Entity, Swap
from ..evaluation.result import Interval
from .evaluation_terminal import interval, short
from .wording import number

EFFECTS = ((0.147, "negligible"), (0.33, "small"), (0.474, "medium"))
"""Sizes of Cliff's delta in words (Romano et al. 2006): below each bound; what is above the last is large."""

MEANINGS = {
    "relevance": "What a mention adds to the explained difference of two logits, shared out among the words of the "
    "text by the method named above; word pieces and words of a name are summed. It is in logits.",
    "mean": "Of a group: over its words, each counted once however often it is mentioned, so that none decides alone. "
    "Per mention: over all mentions alike.",
    "share": "The mean share of a mention in the sum of |relevance| over the words of its text.",
    "[low, high]": "The 95 % interval of a mean, by bootstrap: other words or mentions of the same kind would mostly "
    "give a mean in it.",
    "effect": "Cliff's delta: how much more often a word of the first group has the higher mean than one of the "
    f"second, from -1 to 1. In size, below {EFFECTS[0][0]} it is called negligible, below {EFFECTS[1][0]} small, below "
    f"{EFFECTS[2][0]} medium, else large (Romano et al., 2006).",
    "p": "How often chance alone does as much: for groups, when the same words are split at random; for a word, when "
    "as many mentions are drawn at random.",
    "corrected": "p after correction for having asked many times: for pairs of groups by Holm, for words by Benjamini "
    "and Hochberg.",
    "flagged": "The corrected p is below the study's level: chance alone would rarely do that. Not flagged means not "
    "shown, which is not the same as absent.",
    "a plain count": "How often texts with a group's words are predicted as the first class. It mixes what the model "
    "makes of the words with what else stands in these texts.",
    "swaps": "The same texts with words of the other groups in a word's place, asked of the model anew. It agrees "
    "where the answer moves as relevance says, and the interval excludes 0.",
}

NAMED = 5
"""How many words a sentence names."""

Cells = list[tuple[str, ...]]


def gated(study: BiasStudy) -> BiasStudy:
    """Return a study that can be displayed, but for its sentences: mentions are cut out of these by place first."""
    return replace(displayed(replace(study, sentences={})), sentences=study.sentences)


def classes(study: BiasStudy) -> tuple[str, str]:
    """Return what relevance above 0 and below 0 speaks for."""
    first, apart, second = study.target.partition(" - ")
    return (f"“{first}”", f"“{second}”") if apart else (f"“{study.target}”", f"less of “{study.target}”")


def typical(study: BiasStudy) -> float:
    """Return the median size of the contrast, over texts with a mention."""
    return median([abs(value) for value in {one.text: one.output for one in study.mentions}.values()] or [0.0])


def centre(study: BiasStudy) -> float:
    """Return the mean relevance of all mentions, which words are compared with."""
    return fmean([one.relevance for one in study.mentions] or [0.0])


def scale_of(study: BiasStudy) -> float:
    """Return the largest relevance of a mention, which the full colours stand for."""
    return max((abs(one.relevance) for one in study.mentions), default=0.0) or 1.0


def size(effect: float) -> str:
    """Return how large an effect is, in a word."""
    return next((word for bound, word in EFFECTS if abs(effect) < bound), "large")


def percent(value: float, digits: int = 2) -> str:
    """Return a share as per cent with so many digits below ten, or that it is smaller than a tenth of one."""
    if 0 < value < 0.001:
        return "less than 0.1 %"
    return f"{100 * value:.{digits}g} %" if abs(value) < 0.0995 else f"{100 * value:.0f} %"


def chance(p: float | None) -> str:
    """Return a p value as tables have it."""
    return "-" if p is None else f"{p:.3g}" if p >= 0.001 else "< 0.001"


def counted(count: int, thing: str) -> str:
    """Return how many there are of a thing."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def headline(study: BiasStudy) -> str:
    """Say what was studied: model, data, method, and what was explained."""
    texts, found = counted(study.texts, "text"), counted(len(study.mentions), "mention")
    return f"{study.model} on {study.data} · {texts}, {found} · “{study.target}” explained by {study.method}"


def listed(words: Sequence[str]) -> str:
    """Return words as a sentence lists them; of many, how many more there are."""
    if len(words) > NAMED + 1:
        words = [*words[:NAMED], f"{len(words) - NAMED:,} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def from_to(one: Interval) -> str:
    """Return a mean in logits with its interval, all to the same place."""
    mean, low, high = (short(value, (one.mean, one.low, one.high)) for value in (one.mean, one.low, one.high))
    return f"{mean} logits (95 % interval {low} to {high})"


def excludes_zero(one: Interval) -> bool:
    """Return whether an interval lies on one side of 0."""
    return one.low > 0 or one.high < 0


def forward(one: Difference) -> Difference:
    """Return a difference the way round in which its mean is not below 0."""
    found = one.difference
    if found.mean >= 0:
        return one
    turned = Interval(-found.mean, -found.high, -found.low)
    return Difference(one.b, one.a, turned, -one.effect, one.p, one.corrected, one.flagged)


def verdict(one: Swap) -> str:
    """Say whether a swap agrees with relevance, disagrees, or leaves it open."""
    return "agrees" if one.agrees else "disagrees" if excludes_zero(one.change) else "is unsure"


def left_out(study: BiasStudy) -> dict[str, int]:
    """Return the words that were met and not counted, the most frequent first."""
    return dict(sorted(((word, n) for word, n in study.left_out.items() if n), key=lambda pair: -pair[1]))


# Rows of tables


def group_cells(study: BiasStudy) -> Cells:
    """Return the groups as tables have them."""
    return [
        (
            one.name,
            f"{one.entities:,}",
            f"{one.mentions:,}",
            f"{one.texts:,}",
            interval(one.mean),
            number(one.per_mention),
            percent(one.share),
        )
        for one in study.groups
    ]


def difference_cells(study: BiasStudy) -> Cells:
    """Return the differences as tables have them."""
    return [
        (
            f"{one.a} - {one.b}",
            interval(one.difference),
            f"{one.effect:+.3f} {size(one.effect)}",
            chance(one.p),
            chance(one.corrected),
            flag(one.flagged),
        )
        for one in study.differences
    ]


def entity_cells(entities: Iterable[Entity]) -> Cells:
    """Return words as tables have them."""
    return [
        (
            one.name,
            one.group,
            f"{one.mentions:,}",
            interval(one.mean),
            chance(one.p),
            chance(one.corrected),
            "not tested" if one.p is None else flag(one.flagged),
        )
        for one in entities
    ]


def naive_cells(study: BiasStudy) -> Cells:
    """Return the plain count as tables have it."""
    return [
        (
            one.group,
            f"{one.texts:,}",
            _decimal(one.predicted),
            "-" if one.labelled is None else _decimal(one.labelled),
            _decimal(one.other),
            chance(one.p),
        )
        for one in study.naive
    ]


def swap_cells(study: BiasStudy) -> Cells:
    """Return the swaps as tables have them."""
    return [
        (one.name, one.group, f"{one.mentions:,}", number(one.relevance), interval(one.change), verdict(one))
        for one in study.swaps
    ]


def flag(flagged: bool) -> str:
    """Return the word for a test's outcome."""
    return "flagged" if flagged else "not flagged"


def _decimal(value: float) -> str:
    return f"{100 * value:.1f} %"
