"""Texts, number formats and table rows shared by the views of a bias study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from .._util.text import displayed
from ..bias_study.result import BiasStudy, Difference, Entity, Swap
from ..evaluation.comparison import Interval
from .evaluation_wording import interval, short
from .wording import number

EFFECTS = ((0.147, "negligible"), (0.33, "small"), (0.474, "medium"))
"""Upper bounds of |Cliff's delta| and their names (Romano et al. 2006); larger effects are "large"."""

GUIDE = (
    "Relevance: what a mention of a word contributes to the model's answer, in logits. A difference is flagged if "
    "chance is an unlikely cause. Whether the words or the sentences around them cause it is tested by replacing words."
)
"""What a reader needs for the verdict."""

MEANINGS = {
    "relevance": "The contribution of a mention to the explained difference of two logits, in logits, computed by the "
    "method named above. Relevance of word pieces, and of the words of a name, is summed.",
    "mean": "Of a group: the mean over its words, each counted once however often it is mentioned, so that no frequent "
    "word dominates. Per mention: the mean over all mentions.",
    "share": "The mean share of a mention in the sum of |relevance| over the words of its text.",
    "[low, high]": "The 95 % bootstrap confidence interval of a mean, over words or mentions.",
    "effect": "Cliff's delta, from -1 to 1: the probability that a word of the first group has a higher mean than one "
    f"of the second, minus the probability of the opposite. Below {EFFECTS[0][0]} in absolute value it is called "
    f"negligible, below {EFFECTS[1][0]} small, below {EFFECTS[2][0]} medium, else large (Romano et al., 2006).",
    "p": "The probability of a difference at least as large by chance: for groups, if the same words are split at "
    "random; for a word, if the same number of mentions is drawn at random.",
    "corrected": "p corrected for multiple comparisons: for pairs of groups by Holm, for words by Benjamini and "
    "Hochberg.",
    "flagged": "The corrected p is below the study's level, so chance is an unlikely cause. “Not flagged” does not "
    "prove that there is no difference.",
    "a plain count": "How often texts with a group's words are predicted as the first class. It also depends on the "
    "other words of these texts.",
    "swaps": "The model's answers on the same texts with a word replaced by words of the other groups. A swap agrees "
    "if the answer changes in the direction that relevance predicts, and the interval excludes 0.",
}

NAMED = 5
"""Maximum number of words that a sentence lists."""

Cells = list[tuple[str, ...]]


def displayable(study: BiasStudy) -> BiasStudy:
    """Return a study with all texts made displayable except its sentences, which mentions index by character."""
    return replace(displayed(replace(study, sentences={})), sentences=study.sentences)


def classes(study: BiasStudy) -> tuple[str, str]:
    """Return, in quotes, the classes that positive and negative relevance support."""
    first, is_contrast, second = study.target.partition(" - ")
    return (f"“{first}”", f"“{second}”") if is_contrast else (f"“{study.target}”", f"less of “{study.target}”")


def scale_of(study: BiasStudy) -> float:
    """Return the largest |relevance| of a mention, which is shown in the full colours."""
    return max((abs(mention.relevance) for mention in study.mentions), default=0.0) or 1.0


def effect_name(effect: float) -> str:
    """Return the name of an effect's size, such as "small"."""
    return next((word for bound, word in EFFECTS if abs(effect) < bound), "large")


def percent(value: float, digits: int = 2) -> str:
    """Return a share in per cent, with `digits` significant digits below 10 %."""
    if 0 < value < 0.001:
        return "less than 0.1 %"
    return f"{100 * value:.{digits}g} %" if abs(value) < 0.0995 else f"{100 * value:.0f} %"


def p_value_text(p: float | None) -> str:
    """Return a p value for a table."""
    return "-" if p is None else f"{p:.3g}" if p >= 0.001 else "< 0.001"


def counted(count: int, thing: str) -> str:
    """Return a number with a noun, such as "2 words"."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def headline(study: BiasStudy) -> str:
    """Return the title: model, data, what was explained, and the method."""
    texts, mentions = counted(study.texts, "text"), counted(len(study.mentions), "mention")
    return f"{study.model} on {study.data} · {texts}, {mentions} · “{study.target}” explained by {study.method}"


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence, such as "a, b and 3 more"."""
    if len(words) > NAMED + 1:
        words = [*words[:NAMED], f"{len(words) - NAMED:,} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def from_to(estimate: Interval) -> str:
    """Return a mean in logits with its interval, with the same number of decimals."""
    mean, low, high = (
        short(value, (estimate.mean, estimate.low, estimate.high))
        for value in (estimate.mean, estimate.low, estimate.high)
    )
    return f"{mean} logits (95 % interval {low} to {high})"


def excludes_zero(estimate: Interval) -> bool:
    """Return whether an interval excludes 0."""
    return estimate.low > 0 or estimate.high < 0


def oriented(difference: Difference) -> Difference:
    """Return a difference with its groups in the order in which the mean is not negative."""
    estimate = difference.difference
    if estimate.mean >= 0:
        return difference
    negated = Interval(-estimate.mean, -estimate.high, -estimate.low)
    return Difference(
        difference.b, difference.a, negated, -difference.effect, difference.p, difference.corrected, difference.flagged
    )


def swap_outcome(swap: Swap) -> str:
    """Return whether a swap "agrees" with relevance, "disagrees" or "is unsure"."""
    return "agrees" if swap.agrees else "disagrees" if excludes_zero(swap.change) else "is unsure"


def by_importance(differences: Iterable[Difference]) -> list[Difference]:
    """Return differences, flagged ones first, then by corrected p and p."""
    return sorted(differences, key=lambda difference: (not difference.flagged, difference.corrected, difference.p))


def by_change(swaps: Iterable[Swap]) -> list[Swap]:
    """Return swaps, those that change the answer most first."""
    return sorted(swaps, key=lambda swap: -abs(swap.change.mean))


def words_by_importance(study: BiasStudy) -> list[Entity]:
    """Return the tested words: flagged ones first, then by their distance from the mean of all mentions."""
    tested = [entity for entity in study.entities if entity.p is not None]
    return sorted(tested, key=lambda entity: (not entity.flagged, -abs(entity.mean.mean - study.overall_mean)))


QUESTION = "Does the model treat these groups of words alike?"


def verdict(study: BiasStudy) -> str:
    """Return the answer to `QUESTION` in one sentence, as far as these texts can tell."""
    if not study.mentions:
        return "These texts cannot tell: no word of a group occurs in them."
    if not study.differences:
        return "These texts cannot tell: no two groups were compared."
    first, *others = by_importance(study.differences)
    if not first.flagged:
        most = max(max(-pair.difference.low, pair.difference.high) for pair in study.differences)
        typical = f" ({percent(most / study.median_output)} of a typical output)" if study.median_output else ""
        return (
            "As far as these texts can tell, yes: no difference between the groups is shown. Differences of up to "
            f"{short(most)} logits{typical} remain possible."
        )
    turned = oriented(first)
    more = sum(pair.flagged for pair in others)
    also = f" ({counted(more, 'more pair')} of groups {'differs' if more == 1 else 'differ'} too)" if more else ""
    what = (
        f"words of “{turned.a}” speak more for {classes(study)[0]} than words of “{turned.b}”, by "
        f"{short(turned.difference.mean)} logits{also}"
    )
    if not study.swaps:
        return f"Perhaps not: {what}. Whether the words or their sentences are the cause was not checked."
    agreeing = sum(swap.agrees for swap in study.swaps)
    changed = f"replacing words changed the answer as predicted for {agreeing} of {counted(len(study.swaps), 'word')}"
    if agreeing > len(study.swaps) / 2:
        return f"No: {what}, and {changed}."
    return f"Perhaps not: {what}, but {changed}, so the sentences may be the cause."


def left_out(study: BiasStudy) -> dict[str, int]:
    """Return word -> occurrences of words that occurred but were not counted, the most frequent first."""
    return dict(sorted(((word, n) for word, n in study.left_out.items() if n), key=lambda pair: -pair[1]))


# Rows of tables


def group_cells(study: BiasStudy) -> Cells:
    """Return the table rows of the groups."""
    return [
        (
            group.name,
            f"{group.entities:,}",
            f"{group.mentions:,}",
            f"{group.texts:,}",
            interval(group.mean),
            number(group.per_mention),
            percent(group.share),
        )
        for group in study.groups
    ]


def difference_cells(differences: Iterable[Difference]) -> Cells:
    """Return the table rows of the differences."""
    return [
        (
            f"{difference.a} - {difference.b}",
            interval(difference.difference),
            f"{difference.effect:+.3f} {effect_name(difference.effect)}",
            p_value_text(difference.p),
            p_value_text(difference.corrected),
            flag(difference.flagged),
        )
        for difference in differences
    ]


def entity_cells(entities: Iterable[Entity]) -> Cells:
    """Return the table rows of words."""
    return [
        (
            entity.name,
            entity.group,
            f"{entity.mentions:,}",
            interval(entity.mean),
            p_value_text(entity.p),
            p_value_text(entity.corrected),
            "not tested" if entity.p is None else flag(entity.flagged),
        )
        for entity in entities
    ]


def naive_cells(study: BiasStudy) -> Cells:
    """Return the table rows of the plain count."""
    return [
        (
            row.group,
            f"{row.texts:,}",
            _decimal(row.predicted),
            "-" if row.labelled is None else _decimal(row.labelled),
            _decimal(row.other),
            p_value_text(row.p),
        )
        for row in study.naive
    ]


def swap_cells(swaps: Iterable[Swap]) -> Cells:
    """Return the table rows of the swaps."""
    return [
        (swap.name, swap.group, f"{swap.mentions:,}", number(swap.relevance), interval(swap.change), swap_outcome(swap))
        for swap in swaps
    ]


def flag(flagged: bool) -> str:
    """Return a test's outcome as text."""
    return "flagged" if flagged else "not flagged"


def _decimal(value: float) -> str:
    return f"{100 * value:.1f} %"
