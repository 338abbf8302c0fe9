"""The result of an evaluation: areas with intervals, curves, conservation, differences between methods."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..results.result import Result
from ..results.schema import Correlation, Count, Share, repeated, uneven, unknown

METRICS = ("auac", "au_mse", "aupc", "comprehensiveness", "sufficiency")
"""The areas that every method gets, in the order in which they are shown."""

HIGHER_IS_BETTER = {"auac": True, "au_mse": False, "aupc": True, "comprehensiveness": True, "sufficiency": False}
"""What a good method does to each."""


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
    """A curve's mean over samples at each share of the features, with 95 % intervals."""

    fractions: tuple[Share, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def _flaws(self) -> Iterator[str]:
        yield from uneven(self, "fractions", "mean", "low", "high")


@dataclass(frozen=True)
class Conservation:
    """How the sum of the scores follows the output, over samples (Ali et al. 2022, figure 3)."""

    correlation: Correlation | None
    """None where the sums do not vary."""
    slope: float | None
    gap: float
    """The mean of |output - sum of the scores|."""
    outputs: tuple[float, ...]
    sums: tuple[float, ...]
    """For each sample the explained number, and the sum of its scores: the points of the scatter plot."""

    def _flaws(self) -> Iterator[str]:
        yield from uneven(self, "outputs", "sums")


@dataclass(frozen=True)
class MethodResult:
    """What one method reached."""

    method: str
    auac: Interval
    """Area under the activation curve: the target's probability as features are added, the highest scores first."""
    au_mse: Interval
    """Area under the pruning curve: squared change of the logits as features go, the smallest |scores| first."""
    aupc: Interval
    """The probability of the target along the pruning curve."""
    comprehensiveness: Interval
    """How much the probability falls without the highest scores (ERASER)."""
    sufficiency: Interval
    """How much it falls with the highest scores alone (ERASER)."""
    conservation: Conservation
    curves: Mapping[str, Curve]
    """`activation`, `pruning` and `pruning_probability`."""
    reference: bool = False
    """Whether the row is a reference, not a method: leave-one-out, or the intensity of pixels."""


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
    """Every method on the same samples, under one protocol.

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
    """`name`, `target`, `mask`, `special`, `steps` (None: one for each feature), and what else decides the numbers."""
    samples: Count
    accuracy: Share | None
    """How often the model is right on these samples, where labels are known."""
    model: str
    data: str
    refused: Mapping[str, str] = field(default_factory=dict)
    """Method -> why it does not apply to the model."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def uncompared(self, *metrics: str) -> Iterator[str]:
        """Yield which two methods have no difference in some of the metrics."""
        found = {(one.metric, frozenset((one.a, one.b))) for one in self.pairs}
        for metric, (a, b) in itertools.product(metrics, itertools.combinations(self.methods, 2)):
            if (metric, frozenset((a.method, b.method))) not in found:
                yield f"pairs lacks the difference of {a.method!r} and {b.method!r} in {metric!r}"

    def _flaws(self) -> Iterator[str]:
        names = [one.method for one in self.methods]
        yield from repeated("methods", names)
        for i, one in enumerate(self.pairs):
            yield from unknown(f"pairs[{i}].metric", one.metric, METRICS)
            for side in ("a", "b"):
                yield from unknown(f"pairs[{i}].{side}", getattr(one, side), names)
