"""The result of an evaluation: areas with intervals, curves, conservation, differences between methods."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..results.result import Result
from ..results.schema import Correlation, Count, Share, repeated, uneven, unknown

METRICS = ("auac", "au_mse", "aupc", "comprehensiveness", "sufficiency")
"""The metrics of every method, in the order in which they are shown."""

HIGHER_IS_BETTER = {"auac": True, "au_mse": False, "aupc": True, "comprehensiveness": True, "sufficiency": False}
"""Metric -> whether a higher value is better."""


@dataclass(frozen=True)
class Interval:
    """A mean over samples, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def _flaws(self) -> Iterator[str]:
        if self.low > self.high:
            yield f"low is {self.low:g}, which is more than high, {self.high:g}"


@dataclass(frozen=True)
class Curve:
    """The mean of a curve over samples at each fraction of the features, with 95 % intervals."""

    fractions: tuple[Share, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def _flaws(self) -> Iterator[str]:
        yield from uneven(self, "fractions", "mean", "low", "high")


@dataclass(frozen=True)
class Conservation:
    """The relation of the sum of scores to the output, over samples (Ali et al. 2022, figure 3)."""

    correlation: Correlation | None
    """None if the sums do not vary."""
    slope: float | None
    distance: float
    """The mean of |output - sum of the scores|. It is not the gap of a ledger, which has positions and biases, too."""
    outputs: tuple[float, ...]
    sums: tuple[float, ...]
    """For each sample the explained output and the sum of its scores: the points of the scatter plot."""

    def _flaws(self) -> Iterator[str]:
        yield from uneven(self, "outputs", "sums")


@dataclass(frozen=True)
class MethodResult:
    """The metrics and curves of one method."""

    method: str
    auac: Interval
    """Area under the activation curve: the target's probability as features are added, the highest scores first."""
    au_mse: Interval
    """Area under the pruning curve: squared change of the logits as features are removed, smallest |scores| first."""
    aupc: Interval
    """Area under the target's probability along the pruning curve."""
    comprehensiveness: Interval
    """Decrease of the probability without the features with the highest scores (ERASER)."""
    sufficiency: Interval
    """Decrease of the probability with only the features with the highest scores (ERASER)."""
    conservation: Conservation
    curves: Mapping[str, Curve]
    """`activation`, `pruning` and `pruning_probability`."""
    reference: bool = False
    """Whether the row is a reference, not a method: leave-one-out, or the intensity of pixels."""

    @property
    def is_random(self) -> bool:
        """Whether this is the random order, with any seed."""
        return self.method.partition(":")[0] == "random"


@dataclass(frozen=True)
class Pair:
    """The difference of two methods, a minus b, on the same samples."""

    metric: str
    a: str
    b: str
    mean: float
    low: float
    high: float

    def _flaws(self) -> Iterator[str]:
        if self.low > self.high:
            yield f"low is {self.low:g}, which is more than high, {self.high:g}"


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """The results of all methods on the same samples, under one protocol.

    Examples
    --------
    >>> found = conserva.evaluate(conserva.load(), ["a joy.", "how dull."], ["exact"], reference=False)
    >>> 0 <= found.methods[0].auac.mean <= 1
    True
    """

    _schema = "conserva/evaluation/1"
    _noun = "evaluation"
    _in_repr = ("model", "data", "samples")

    methods: tuple[MethodResult, ...]
    pairs: tuple[Pair, ...]
    protocol: Mapping[str, Any]
    """`name`, `target`, `mask`, `special`, `steps` (None: one per feature), and other settings that affect results."""
    samples: Count
    accuracy: Share | None
    """The accuracy of the model on these samples, if labels are known."""
    model: str
    data: str
    refused: Mapping[str, str] = field(default_factory=dict)
    """Method -> why it does not apply to the model."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def ranked(self, metric: str) -> list[MethodResult]:
        """Return the methods from best to worst, without references and random orders."""
        candidates = [result for result in self.methods if not result.reference and not result.is_random]
        return sorted(candidates, key=lambda result: getattr(result, metric).mean, reverse=HIGHER_IS_BETTER[metric])

    def difference(self, metric: str, a: str, b: str) -> Interval | None:
        """Return the difference of two methods, a minus b, or None if they were not compared."""
        for pair in self.pairs:
            if (pair.metric, pair.a, pair.b) == (metric, a, b):
                return Interval(pair.mean, pair.low, pair.high)
            if (pair.metric, pair.a, pair.b) == (metric, b, a):
                return Interval(-pair.mean, -pair.high, -pair.low)
        return None

    def is_surely_better(self, metric: str, a: str, b: str) -> bool:
        """Return whether a is better than b: whether the interval of their difference excludes 0 on that side."""
        difference = self.difference(metric, a, b)
        if difference is None:
            return False
        return difference.low > 0 if HIGHER_IS_BETTER[metric] else difference.high < 0

    def possibly_best(self, metric: str) -> list[MethodResult]:
        """Return the first method and those that it is not surely better than, from best to worst."""
        order = self.ranked(metric)
        return [result for result in order if not self.is_surely_better(metric, order[0].method, result.method)]

    def surely_best(self, metric: str) -> MethodResult | None:
        """Return the method that is surely better than each other method and each random order; None without one."""
        order = self.ranked(metric)
        others = [result for result in self.methods if not result.reference and result is not order[0]] if order else []
        if others and all(self.is_surely_better(metric, order[0].method, other.method) for other in others):
            return order[0]
        return None

    def uncompared(self, *metrics: str) -> Iterator[str]:
        """Yield a message for each pair of methods without a difference in one of the metrics."""
        compared = {(pair.metric, frozenset((pair.a, pair.b))) for pair in self.pairs}
        for metric, (a, b) in itertools.product(metrics, itertools.combinations(self.methods, 2)):
            if (metric, frozenset((a.method, b.method))) not in compared:
                yield f"pairs lacks the difference of {a.method!r} and {b.method!r} in {metric!r}"

    def _flaws(self) -> Iterator[str]:
        names = [result.method for result in self.methods]
        yield from repeated("methods", names)
        for i, pair in enumerate(self.pairs):
            yield from unknown(f"pairs[{i}].metric", pair.metric, METRICS)
            for side in ("a", "b"):
                yield from unknown(f"pairs[{i}].{side}", getattr(pair, side), names)
