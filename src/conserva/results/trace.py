"""`Trace`: relevance at the inputs and at the output of every layer, position by position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from ..engine.ledger import Ledger
from .explanation import ClassScore, Explanation, fill_missing, outside, uncovered
from .result import Result
from .schema import Count, Share, uneven, unsummed


@dataclass(frozen=True, repr=False)
class Trace(Result):
    """Relevance at the inputs and at the output of every layer, as layers x features.

    Examples
    --------
    >>> result = conserva.trace(conserva.load(), "a joy.")
    >>> len(result.layers), len(result.features)
    (5, 5)
    """

    _schema = "conserva/trace/1"
    _noun = "trace"
    _in_repr = ("target", "output", "method", "model")

    features: tuple[str, ...]
    """The columns: the input's features, and the positions that the network adds, such as "[cls]"."""
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    """The index of the word in the text, or of the part of another input, that each feature belongs to."""
    layers: tuple[str, ...]
    """The rows, from the input to the output: "inputs", "layer 0", and so on."""
    scores: tuple[tuple[float | None, ...], ...]
    """Layers x features; None where a layer does not have the position."""
    sums: tuple[float, ...]
    """The sum of each row. Its difference to the output is due to constants that later layers add, or lost by the
    rules."""
    text: str
    target: str
    output: float
    probability: Share | None
    """The probability of the target, if it is a single class."""
    ledger: Ledger[float] | None
    method: str
    model: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[tuple[str, Count], ...] = ()
    """For tasks with several inputs: the name of each input and its number of features, in order."""

    offsets: tuple[tuple[Count, Count] | None, ...] = ()
    """The start and end characters of each feature in `text`; None for features that are not part of it."""
    unknown: tuple[bool, ...] = ()
    """Which features are the tokenizer's unknown token."""
    classes: tuple[ClassScore, ...] = ()
    """The outputs of the model's classes, the highest first: at most ten, and the target's."""

    def __post_init__(self) -> None:
        fill_missing(self)

    def explanation(self) -> Explanation:
        """Return the first row as an explanation, as by `conserva.explain`, but without a picture."""
        columns = [i for i, score in enumerate(self.scores[0]) if score is not None]
        return Explanation(
            features=tuple(self.features[i] for i in columns),
            scores=tuple(score for score in self.scores[0] if score is not None),
            special=tuple(self.special[i] for i in columns),
            words=tuple(self.words[i] for i in columns),
            text=self.text,
            target=self.target,
            output=self.output,
            probability=self.probability,
            ledger=self.ledger,
            method=self.method,
            model=self.model,
            provenance=self.provenance,
            sections=self.sections,
            offsets=tuple(self.offsets[i] for i in columns),
            unknown=tuple(self.unknown[i] for i in columns),
            classes=self.classes,
        )

    def _flaws(self) -> Iterator[str]:
        many = len(self.features)
        yield from uneven(self, "features", "special", "words", "offsets", "unknown")
        yield from outside(self.offsets, self.text)
        yield from uneven(self, "layers", "scores", "sums")
        if not many or not self.layers:
            yield "features or layers is empty"
        for i, (row, total) in enumerate(zip(self.scores, self.sums, strict=False)):
            if len(row) != many:
                yield f"scores[{i}] has {len(row)} entries, and there are {many} features"
            yield from unsummed(f"scores[{i}]", [score for score in row if score is not None], total, f"sums[{i}]")
        yield from uncovered(self.sections, sum(score is not None for row in self.scores[:1] for score in row))
        if self.ledger is not None:
            yield from unsummed("ledger", astuple(self.ledger), self.output)
