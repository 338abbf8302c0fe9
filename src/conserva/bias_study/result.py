"""The result of a bias study: mentions of groups' words with their relevance, comparisons of groups, and entities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from ..evaluation.comparison import Interval
from ..results.result import Result
from ..results.schema import Correlation, Count, Share, repeated, unknown


@dataclass(frozen=True)
class Mention:
    """A word or phrase of a group in a text, and its relevance."""

    text: Count
    """The index of the text in the corpus."""
    start: Count
    end: Count
    """The start and end characters in the text."""
    entity: str
    """The word or phrase, as listed in the group."""
    group: str
    relevance: float
    """The sum over its tokens, in the unit of the explained contrast: positive relevance supports the first class."""
    share: Share
    """Its |relevance| as a fraction of the sum of |relevance| over the words of the text."""
    output: float
    """The contrast, a difference of two logits."""
    label: int | None = None
    """The label of the text, if any."""


@dataclass(frozen=True)
class Group:
    """The mentions of a group in total."""

    name: str
    entities: Count
    """The number of its words that are mentioned."""
    mentions: Count
    texts: Count
    mean: Interval
    """The mean relevance over entities, which all have the same weight, regardless of their number of mentions."""
    per_mention: float
    """The mean relevance over mentions."""
    share: Share
    """The mean share of |relevance|."""


@dataclass(frozen=True)
class Difference:
    """The comparison of two groups: a minus b, by means over entities."""

    a: str
    b: str
    difference: Interval
    effect: Correlation
    """Cliff's delta: P(entity of a has the higher mean) - P(entity of b has the higher mean), from -1 to 1."""
    p: Share
    """The p value of a two-sided permutation test of the entities' means."""
    corrected: Share
    """The p value after Holm's correction for all pairs of groups."""
    flagged: bool
    """Whether the corrected p value is below the study's level."""


@dataclass(frozen=True)
class Entity:
    """One word or phrase of a group, with all its mentions."""

    name: str
    group: str
    mentions: Count
    mean: Interval
    p: Share | None
    """The p value of a permutation test against equally many mentions drawn from all; None for too few mentions."""
    corrected: Share | None
    """The p value after the correction of Benjamini and Hochberg for all tested entities."""
    flagged: bool


@dataclass(frozen=True)
class Naive:
    """A comparison without explanations: how often texts that mention a group are predicted as the first class."""

    group: str
    texts: Count
    predicted: Share
    """The fraction of these texts that is predicted as the first class."""
    labelled: Share | None
    """The fraction labelled as the first class, if labels are known: groups can differ in their texts."""
    other: Share
    """The fraction predicted as the first class among texts that mention another group, but not this one."""
    p: Share
    """The p value of that difference, by Fisher's exact test."""


@dataclass(frozen=True)
class Swap:
    """A counterfactual: the mentions of an entity replaced by other names."""

    name: str
    group: str
    mentions: Count
    relevance: float
    """The mean relevance of the entity."""
    change: Interval
    """The mean decrease of the contrast over mentions, when they are replaced by names of the other groups."""
    agrees: bool
    """Whether the interval of the change has the sign of the relevance (minus the mean of all mentions)."""


@dataclass(frozen=True, repr=False)
class BiasStudy(Result):
    """The result of a bias study.

    Examples
    --------
    >>> texts = ["olivia is a joy.", "oliver is a joy."]
    >>> study = conserva.bias(conserva.load(), texts, {"female": ["Olivia"], "male": ["Oliver"]}, swaps=0)
    >>> [mention.entity for mention in study.mentions]
    ['Olivia', 'Oliver']
    """

    _schema = "conserva/bias-study/1"
    _noun = "bias study"
    _in_repr = ("model", "data")

    target: str
    """The explained contrast, such as "positive - negative"."""
    method: str
    model: str
    data: str
    texts: Count
    """The number of texts read, with and without mentions."""
    groups: tuple[Group, ...]
    differences: tuple[Difference, ...]
    entities: tuple[Entity, ...]
    """In descending order of their mean relevance."""
    naive: tuple[Naive, ...]
    swaps: tuple[Swap, ...]
    mentions: tuple[Mention, ...]
    """All mentions, in the order of the corpus."""
    sentences: Mapping[int, str]
    """Index of a text -> the text, for every text with a mention."""
    level: Share
    """The level of significance: smaller corrected p values are flagged."""
    left_out: Mapping[str, Count]
    """Words of groups that do not count -> their number of occurrences: ordinary words, words of several groups."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median_output(self) -> float:
        """The median |contrast| over texts with a mention; 0 without any."""
        return median([abs(value) for value in {one.text: one.output for one in self.mentions}.values()] or [0.0])

    @property
    def overall_mean(self) -> float:
        """The mean relevance of all mentions, with which words are compared; 0 without any."""
        return fmean([mention.relevance for mention in self.mentions] or [0.0])

    def _flaws(self) -> Iterator[str]:
        groups = [group.name for group in self.groups]
        yield from repeated("groups", groups)
        for i, mention in enumerate(self.mentions):
            yield from unknown(f"mentions[{i}].group", mention.group, groups)
            if mention.text not in self.sentences:
                yield f"mentions[{i}].text is {mention.text}, and sentences has no text of that number"
            elif not mention.start < mention.end <= len(self.sentences[mention.text]):
                yield f"mentions[{i}] is from {mention.start} to {mention.end}, where its sentence has no such part"
        for i, pair in enumerate(self.differences):
            for side in ("a", "b"):
                yield from unknown(f"differences[{i}].{side}", getattr(pair, side), groups)
        for name in ("entities", "naive", "swaps"):
            for i, entry in enumerate(getattr(self, name)):
                yield from unknown(f"{name}[{i}].group", entry.group, groups)
