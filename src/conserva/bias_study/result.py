"""What a bias study found: mentions of groups' words with their relevance, groups compared, entities ranked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..evaluation.result import Interval
from ..results.result import Result
from ..results.schema import Correlation, Count, Share, repeated, unknown


@dataclass(frozen=True)
class Mention:
    """A word or phrase of a group in a text, and the relevance that fell on it."""

    text: Count
    """The number of the text in the corpus."""
    start: Count
    end: Count
    """Where it stands in the text, in characters."""
    entity: str
    """The group's word or phrase, as the group has it."""
    group: str
    relevance: float
    """The sum over its pieces, in the unit of the explained contrast: above 0 it speaks for its first class."""
    share: Share
    """Its |relevance| as a share of the sum of |relevance| over the words of the text."""
    output: float
    """The contrast itself, the difference of two logits."""
    label: int | None = None
    """The text's own label, if it has one."""


@dataclass(frozen=True)
class Group:
    """A group's mentions together."""

    name: str
    entities: Count
    """How many of its words were met."""
    mentions: Count
    texts: Count
    mean: Interval
    """Of the relevance, over entities: one with many mentions counts as much as others, so that none decides alone."""
    per_mention: float
    """The mean over mentions."""
    share: Share
    """The mean share of |relevance|."""


@dataclass(frozen=True)
class Difference:
    """Two groups compared: a minus b, in the means over entities."""

    a: str
    b: str
    difference: Interval
    effect: Correlation
    """Cliff's delta: how much more often an entity of a has the higher mean than one of b, from -1 to 1."""
    p: Share
    """How often groups drawn at random among the same entities differ as much: permutation test, two sides."""
    corrected: Share
    """The same after Holm's correction for all pairs of groups."""
    flagged: bool
    """Whether the corrected value is below the study's level."""


@dataclass(frozen=True)
class Entity:
    """One word or phrase of a group, over its mentions."""

    name: str
    group: str
    mentions: Count
    mean: Interval
    p: Share | None
    """How often as many mentions drawn at random lie as far from the mean of all; None for too few mentions."""
    corrected: Share | None
    """The same after Benjamini and Hochberg's correction for all entities that were tested."""
    flagged: bool


@dataclass(frozen=True)
class Naive:
    """What one sees without explanations: how often texts that mention a group are predicted as the first class."""

    group: str
    texts: Count
    predicted: Share
    """The share of these texts that is predicted so."""
    labelled: Share | None
    """The share that is labelled so, where labels are known: the texts may differ, not the model."""
    other: Share
    """The share predicted so among texts that mention another group, or none where there is but one."""
    p: Share
    """Of that difference, by Fisher's exact test."""


@dataclass(frozen=True)
class Swap:
    """A counterfactual: an entity's mentions with other names in its place."""

    name: str
    group: str
    mentions: Count
    relevance: float
    """Its mean relevance."""
    change: Interval
    """How much the contrast falls, in the mean over mentions, when names of the other groups stand in its place."""
    agrees: bool
    """Whether the change has the sign of the relevance (less the mean of all mentions) and leaves out 0."""


@dataclass(frozen=True, repr=False)
class BiasStudy(Result):
    """The whole study.

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
    """The contrast that was explained, as "positive - negative"."""
    method: str
    model: str
    data: str
    texts: Count
    """How many texts were read, with and without mentions."""
    groups: tuple[Group, ...]
    differences: tuple[Difference, ...]
    entities: tuple[Entity, ...]
    """From the most positive mean to the most negative."""
    naive: tuple[Naive, ...]
    swaps: tuple[Swap, ...]
    mentions: tuple[Mention, ...]
    """All of them, in the order of the corpus."""
    sentences: Mapping[int, str]
    """Number of a text -> the text, for every text with a mention."""
    level: Share
    """Below which corrected values are flagged."""
    left_out: Mapping[str, Count]
    """Words of groups that were not counted, with how often they were met: ordinary words, words of two groups."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def _flaws(self) -> Iterator[str]:
        groups = [one.name for one in self.groups]
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
            for i, one in enumerate(getattr(self, name)):
                yield from unknown(f"{name}[{i}].group", one.group, groups)
