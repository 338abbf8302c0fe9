"""`Generation`: for every generated token, the score of each token before it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from ..engine.ledger import ENTRIES, Ledger
from ..errors import Error
from .explanation import Explanation, Sink, fill_missing, outside, uncovered
from .result import Result
from .schema import Count, Share, uneven, unknown, unsummed

LOGIT, LOG_PROBABILITY = "logit", "log-probability"


@dataclass(frozen=True)
class Step:
    """One generated token and its explanation."""

    token: str
    scores: tuple[float, ...]
    """One score for each feature before the token."""
    output: float
    """The explained output: the token's logit or log-probability."""
    probability: Share
    ledger: Ledger[float] | None
    others: tuple[tuple[str, Share], ...] = ()
    """The most probable tokens at this step, with their probabilities."""

    def _flaws(self) -> Iterator[str]:
        if self.ledger is not None:
            yield from unsummed("ledger", astuple(self.ledger), self.output)


@dataclass(frozen=True, repr=False)
class Generation(Result):
    """A prompt, the text generated after it, and for each generated token the relevance of all tokens before it.

    Examples
    --------
    >>> task = conserva.load("SmolLM2.gguf")  # doctest: +SKIP
    >>> generation = conserva.explain_generation(task, "The capital of France is")  # doctest: +SKIP
    >>> generation.row(0).show()  # doctest: +SKIP
    """

    _schema = "conserva/generation/1"
    _noun = "generation"
    _in_repr = ("written", "method", "model")

    features: tuple[str, ...]
    """All tokens: those of the input, then the generated ones."""
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    start: Count
    """The index of the first generated token: step i generated the feature `start + i`."""
    steps: tuple[Step, ...]
    text: str
    """The prompt."""
    written: str
    """The generated text."""
    score: str
    """The explained quantity: "logit" or "log-probability"."""
    method: str
    model: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[tuple[str, Count], ...] = ()
    """For tasks with several inputs: the name of each input and its number of features, in order."""
    sink: int | None = None
    """The index of the attention sink, a language model's first token."""

    offsets: tuple[tuple[Count, Count] | None, ...] = ()
    """The start and end characters of each feature in `text`, the prompt; None for other features, such as the
    generated ones."""
    unknown: tuple[bool, ...] = ()
    """Which features are the tokenizer's unknown token."""

    def __post_init__(self) -> None:
        fill_missing(self)

    def matrix(self) -> list[list[float]]:
        """Return the scores as generated tokens x features; 0 for features after a token."""
        width = len(self.features)
        return [[*step.scores, *[0.0] * (width - len(step.scores))] for step in self.steps]

    def row(self, step: int) -> Explanation:
        """Return the explanation of one generated token; -1 is the last."""
        chosen = self.steps[self._index("step", step)]
        return self._explanation(chosen.scores, chosen.output, chosen.ledger, repr(chosen.token), chosen.probability)

    def span(self, first: int, last: int) -> Explanation:
        """Return the explanation of several consecutive tokens: the sums of their scores, outputs and ledgers.

        Scores that a token of the span has for a later one are included, at the token's own feature.

        Parameters
        ----------
        first, last
            The steps of the first and the last token, both included. Negative indices count from the end.
        """
        given = f"first={first!r}, last={last!r}"
        first, last = self._index("first", first), self._index("last", last)
        if first > last:
            raise Error(f"{given}: first comes after last. Swap them.")
        chosen = self.steps[first : last + 1]
        scores = tuple(map(sum, itertools.zip_longest(*(step.scores for step in chosen), fillvalue=0.0)))
        ledgers = [step.ledger for step in chosen]
        ledger = None
        if all(part is not None for part in ledgers):
            ledger = Ledger(*(sum(getattr(part, name) for part in ledgers) for name in ENTRIES))
        words = "".join(self.features[self.start + first : self.start + last + 1])
        return self._explanation(scores, sum(step.output for step in chosen), ledger, repr(words), None)

    def _index(self, name: str, given: int) -> int:
        """Return the index of a step; negative numbers count from the end, as in a list."""
        many = len(self.steps)
        try:
            index = operator.index(given)  # also accepts integers of numpy and torch
        except TypeError:
            index = many
        if not -many <= index < many:
            raise Error(f"{name}={given!r} is not an index of the {many} generated tokens: give {-many} to {many - 1}.")
        return index % many

    def _explanation(
        self,
        scores: Sequence[float],
        output: float,
        ledger: Ledger[float] | None,
        target: str,
        probability: float | None,
    ) -> Explanation:
        many = len(scores)
        ends = list(itertools.accumulate(count for _, count in self.sections))
        starts = [end - count for end, (_, count) in zip(ends, self.sections, strict=True)]
        sections = tuple(
            (name, max(0, min(end, many) - first))
            for (name, _), first, end in zip(self.sections, starts, ends, strict=True)
        )
        return Explanation(
            features=self.features[:many],
            scores=tuple(scores),
            special=self.special[:many],
            words=self.words[:many],
            text=self.text,
            target=f"{self.score} of {target}",
            output=output,
            probability=probability,
            ledger=ledger,
            method=self.method,
            model=self.model,
            provenance=self.provenance,
            sections=sections,
            offsets=self.offsets[:many],
            unknown=self.unknown[:many],
            sink=None if self.sink is None else Sink.of(self.sink, self.features, scores),
        )

    def _flaws(self) -> Iterator[str]:
        many = len(self.features)
        yield from uneven(self, "features", "special", "words", "offsets", "unknown")
        yield from outside(self.offsets, self.text)
        yield from uncovered(self.sections, many)
        yield from unknown("score", self.score, (LOGIT, LOG_PROBABILITY))
        if self.start + len(self.steps) != many:
            yield f"start is {self.start}, there are {len(self.steps)} steps, and together that is not {many} features"
        if self.sink is not None and not 0 <= self.sink < many:
            yield f"sink is {self.sink}, and there are {many} features"
        for i, step in enumerate(self.steps):
            # Every step needs a score for the sink, which views show separately.
            if not (self.sink or 0) < len(step.scores) <= self.start + i:
                yield f"steps[{i}].scores has {len(step.scores)} entries, and {self.start + i} features come before it"
