"""What a bias study found: mentions of groups' words with their relevance, groups compared, entities ranked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..faithfulness.evaluation import Interval
from ..saving import loaded
from ..schema import parsed

SCHEMA = "conserva/bias-study/1"


@dataclass(frozen=True)
class Mention:
    """A word or phrase of a group in a text, and the relevance that fell on it."""

    text: int
    """The number of the text in the corpus."""
    start: int
    end: int
    """Where it stands in the text, in characters."""
    entity: str
    """The group's word or phrase, as the group has it."""
    group: str
    relevance: float
    """The sum over its pieces, in the unit of the explained contrast: above 0 it speaks for its first class."""
    share: float
    """Its |relevance| as a share of the sum of |relevance| over the words of the text."""
    output: float
    """The contrast itself, the difference of two logits."""
    label: int | None = None
    """The text's own label, if it has one."""


@dataclass(frozen=True)
class Group:
    """A group's mentions together."""

    name: str
    entities: int
    """How many of its words were met."""
    mentions: int
    texts: int
    mean: Interval
    """Of the relevance, over entities: one with many mentions counts as much as others, so that none decides alone."""
    per_mention: float
    """The mean over mentions."""
    share: float
    """The mean share of |relevance|."""


@dataclass(frozen=True)
class Difference:
    """Two groups compared: a minus b, in the means over entities."""

    a: str
    b: str
    difference: Interval
    effect: float
    """Cliff's delta: how much more often an entity of a has the higher mean than one of b, from -1 to 1."""
    p: float
    """How often groups drawn at random among the same entities differ as much: permutation test, two sides."""
    corrected: float
    """The same after Holm's correction for all pairs of groups."""
    flagged: bool
    """Whether the corrected value is below the study's level."""


@dataclass(frozen=True)
class Entity:
    """One word or phrase of a group, over its mentions."""

    name: str
    group: str
    mentions: int
    mean: Interval
    p: float | None
    """How often as many mentions drawn at random lie as far from the mean of all; None for too few mentions."""
    corrected: float | None
    """The same after Benjamini and Hochberg's correction for all entities that were tested."""
    flagged: bool


@dataclass(frozen=True)
class Naive:
    """What one sees without explanations: how often texts that mention a group are predicted as the first class."""

    group: str
    texts: int
    predicted: float
    """The share of these texts that is predicted so."""
    labelled: float | None
    """The share that is labelled so, where labels are known: the texts may differ, not the model."""
    other: float
    """The share predicted so among texts that mention another group, or none where there is but one."""
    p: float
    """Of that difference, by Fisher's exact test."""


@dataclass(frozen=True)
class Swap:
    """A counterfactual: an entity's mentions with other names in its place."""

    name: str
    group: str
    mentions: int
    relevance: float
    """Its mean relevance."""
    change: Interval
    """How much the contrast falls, in the mean over mentions, when names of the other groups stand in its place."""
    agrees: bool
    """Whether the change has the sign of the relevance (less the mean of all mentions) and leaves out 0."""


@dataclass(frozen=True)
class BiasStudy:
    """The whole study."""

    target: str
    """The contrast that was explained, as "positive - negative"."""
    method: str
    model: str
    data: str
    texts: int
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
    level: float
    """Below which corrected values are flagged."""
    left_out: Mapping[str, int]
    """Words of groups that were not counted, with how often they were met: ordinary words, words of two groups."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the study as JSON."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, ensure_ascii=False, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> BiasStudy:
        """Return the study that `to_json` wrote."""
        found = parsed(text, SCHEMA, "bias study")
        return cls(
            **{
                **found,
                "groups": tuple(Group(**{**one, "mean": Interval(**one["mean"])}) for one in found["groups"]),
                "differences": tuple(
                    Difference(**{**one, "difference": Interval(**one["difference"])}) for one in found["differences"]
                ),
                "entities": tuple(Entity(**{**one, "mean": Interval(**one["mean"])}) for one in found["entities"]),
                "naive": tuple(Naive(**one) for one in found["naive"]),
                "swaps": tuple(Swap(**{**one, "change": Interval(**one["change"])}) for one in found["swaps"]),
                "mentions": tuple(Mention(**one) for one in found["mentions"]),
                "sentences": {int(number): sentence for number, sentence in found["sentences"].items()},
            }
        )

    @classmethod
    def load(cls, path: str | Path) -> BiasStudy:
        """Read a study that was saved as JSON."""
        return cls.from_json(loaded(path))
