"""The result for a whole generation: for every token that was written, what each token before it had to do with it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from ..engine.ledger import ENTRIES, Ledger
from ..errors import Error
from .explanation import Explanation, Sink, uncovered
from .result import Result
from .schema import Count, Share, uneven, unknown, unsummed

LOGIT, LOG_PROBABILITY = "logit", "log-probability"


@dataclass(frozen=True)
class Step:
    """One token that was written, and why."""

    token: str
    scores: tuple[float, ...]
    """One for each feature that the model had read by then; those that follow have none."""
    output: float
    """The explained number: the token's logit, or the logarithm of its probability."""
    probability: Share
    ledger: Ledger[float] | None
    others: tuple[tuple[str, Share], ...] = ()
    """The tokens that were most probable in its place, with their probabilities."""

    def _flaws(self) -> Iterator[str]:
        if self.ledger is not None:
            yield from unsummed("ledger", astuple(self.ledger), self.output)


@dataclass(frozen=True, repr=False)
class Generation(Result):
    """A prompt, what was written after it, and for each written token the relevance of all tokens before it.

    Examples
    --------
    >>> found = conserva.explain_generation(conserva.load("SmolLM2.gguf"), "The capital of France is")  # doctest: +SKIP
    >>> found.row(0).show()  # doctest: +SKIP
    """

    _schema = "conserva/generation/1"
    _noun = "generation"
    _in_repr = ("written", "method", "model")

    features: tuple[str, ...]
    """All tokens: what was read, then what was written."""
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    start: Count
    """Where among the features the written tokens begin: step i wrote the feature `start + i`."""
    steps: tuple[Step, ...]
    text: str
    """The prompt."""
    written: str
    """What was written after it, as text."""
    score: str
    """What is explained: "logit" or "log-probability"."""
    method: str
    model: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[tuple[str, Count], ...] = ()
    """Where the features come from several inputs: what each is called, and how many of the features it has."""
    sink: int | None = None
    """Which feature is a language model's first token."""

    def matrix(self) -> list[list[float]]:
        """Return written tokens x features, 0 for what a token could not read."""
        width = len(self.features)
        return [[*step.scores, *[0.0] * (width - len(step.scores))] for step in self.steps]

    def row(self, step: int) -> Explanation:
        """Return why one token was written; -1 is the last."""
        one = self.steps[self._place("step", step)]
        return self._explanation(one.scores, one.output, one.ledger, repr(one.token), one.probability)

    def span(self, first: int, last: int) -> Explanation:
        """Return why a span was written, from one step to another, both included: relevance and books are sums.

        What a token of the span gave to a later one is the span's own, and stands at its place.
        """
        given = f"first={first!r}, last={last!r}"
        first, last = self._place("first", first), self._place("last", last)
        if first > last:
            raise Error(f"{given}: the first comes after the last. Give them the other way round.")
        chosen = self.steps[first : last + 1]
        scores = tuple(map(sum, itertools.zip_longest(*(one.scores for one in chosen), fillvalue=0.0)))
        ledgers = [one.ledger for one in chosen]
        ledger = None
        if all(one is not None for one in ledgers):
            ledger = Ledger(*(sum(getattr(one, name) for one in ledgers) for name in ENTRIES))
        words = "".join(self.features[self.start + first : self.start + last + 1])
        return self._explanation(scores, sum(one.output for one in chosen), ledger, repr(words), None)

    def _place(self, name: str, given: int) -> int:
        """Return which step is meant, counted from the first; negative numbers count from the end, as in a list."""
        many = len(self.steps)
        try:
            place = operator.index(given)  # numbers of numpy and torch are as good
        except TypeError:
            place = many
        if not -many <= place < many:
            raise Error(f"{name}={given!r}: there are {many} written tokens, counted from 0, or back from -1.")
        return place % many

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
            sink=None if self.sink is None else Sink.of(self.sink, self.features, scores),
        )

    def _flaws(self) -> Iterator[str]:
        many = len(self.features)
        yield from uneven(self, "features", "special", "words")
        yield from uncovered(self.sections, many)
        yield from unknown("score", self.score, (LOGIT, LOG_PROBABILITY))
        if self.start + len(self.steps) != many:
            yield f"start is {self.start}, there are {len(self.steps)} steps, and together that is not {many} features"
        if self.sink is not None and not 0 <= self.sink < many:
            yield f"sink is {self.sink}, and there are {many} features"
        for i, step in enumerate(self.steps):
            # Every step has a score for the first token, which views show apart.
            if not (self.sink or 0) < len(step.scores) <= self.start + i:
                yield f"steps[{i}].scores has {len(step.scores)} entries, and {self.start + i} features come before it"
