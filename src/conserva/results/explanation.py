"""The result: what was explained, what every feature got, and where the rest of the score went."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from ..engine.ledger import Ledger
from .picture import picture_flaws
from .result import Result
from .schema import Count, Share, uneven, unsummed


@dataclass(frozen=True)
class Sink:
    """The token on which a language model leaves attention that it has no use for: the first one it reads."""

    token: str
    score: float
    share: Share
    """Its part of all scores, counted without their signs."""
    place: int | None
    """Which of the features it is; None where it was left out of the picture."""

    @classmethod
    def of(cls, place: int, features: Sequence[str], scores: Sequence[float]) -> Sink:
        """Measure the sink among all scores."""
        total = sum(map(abs, scores))
        return cls(features[place], scores[place], abs(scores[place]) / total if total else 0.0, place)


@dataclass(frozen=True, repr=False)
class Explanation(Result):
    """Why a model gave a score: relevance of every feature, signed, in the unit of the output.

    Examples
    --------
    >>> one = conserva.explain(conserva.load(), "a joy.")
    >>> one.features
    ('[CLS]', 'a', 'joy', '.', '[SEP]')
    >>> one.merged().visible().features
    ('a', 'joy', '.')
    """

    _schema = "conserva/explanation/1"
    _noun = "explanation"
    _in_repr = ("target", "output", "method", "model")

    features: tuple[str, ...]
    scores: tuple[float, ...]
    special: tuple[bool, ...]
    """Which features are none of the input's own: the tokenizer's marks, a graph's virtual node."""
    words: tuple[int | None, ...]
    """Which word of the text, or which node of the graph, a feature belongs to."""
    text: str
    """What was explained, or what it is called."""
    target: str
    output: float
    probability: Share | None
    """The probability of the target, if it is one of the model's classes."""
    ledger: Ledger[float] | None
    method: str
    model: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    picture: Mapping[str, Any] | None = None
    """What the features are drawn on, if they are not words: `kind` "molecule" with its `smiles`, where feature i is of
    the atom words[i]; "superpixels" with an `image` (bytes, rows of pixels) and the `regions` of its pixels; "image"
    with an `image` (a PNG in base64) and the `grid` of its patches, rows and columns."""
    sections: tuple[tuple[str, Count], ...] = ()
    """Where the features come from several inputs: what each is called, and how many of the features it has."""
    sink: Sink | None = None
    """A language model's first token, and how much of the relevance it holds."""

    def merged(self) -> Explanation:
        """Return the same explanation with the pieces of a word summed up."""
        groups: list[list[int]] = []
        borders = set(itertools.accumulate(count for _, count in self.sections))
        for i, word in enumerate(self.words):
            if groups and word is not None and self.words[groups[-1][-1]] == word and i not in borders:
                groups[-1].append(i)
            else:
                groups.append([i])
        return self._of(groups)

    def visible(self) -> Explanation:
        """Return the same explanation without the features that are none of the input's own."""
        return self._of([[i] for i, special in enumerate(self.special) if not special])

    def without_sink(self) -> Explanation:
        """Return the same explanation with a language model's first token left out of the picture, not of the books."""
        if self.sink is None or self.sink.place is None:
            return self
        return self._of([[i] for i in range(len(self.features)) if i != self.sink.place])

    def _of(self, groups: Sequence[Sequence[int]]) -> Explanation:
        """Return the same explanation with groups of features in their place, each with the sum of its scores."""
        borders = list(itertools.accumulate(count for _, count in self.sections))
        places = [bisect.bisect_right(borders, group[0]) for group in groups]
        sink = self.sink
        if sink is not None and sink.place is not None:
            sink = replace(sink, place=next((i for i, group in enumerate(groups) if sink.place in group), None))
        return replace(
            self,
            features=tuple(_joined([self.features[i] for i in group]) for group in groups),
            scores=tuple(sum(self.scores[i] for i in group) for group in groups),
            special=tuple(self.special[group[0]] for group in groups),
            words=tuple(self.words[group[0]] for group in groups),
            sections=tuple((name, places.count(i)) for i, (name, _) in enumerate(self.sections)),
            sink=sink,
        )

    def _flaws(self) -> Iterator[str]:
        yield from uneven(self, "features", "scores", "special", "words")
        yield from uncovered(self.sections, len(self.features))
        if self.ledger is not None:
            yield from unsummed("ledger", astuple(self.ledger), self.output)
        if self.sink is not None and self.sink.place is not None and not 0 <= self.sink.place < len(self.features):
            yield f"sink.place is {self.sink.place}, and there are {len(self.features)} features"
        yield from picture_flaws(self)


def uncovered(sections: Sequence[tuple[str, int]], many: int) -> Iterator[str]:
    """Yield that sections do not hold all of so many features."""
    if sections and (held := sum(count for _, count in sections)) != many:
        yield f"sections hold {held} features, and there are {many}"


def _joined(pieces: Sequence[str]) -> str:
    """Put the pieces of a word together, in the marks of the common tokenizers."""
    return pieces[0] + "".join(piece.removeprefix("##") for piece in pieces[1:])
