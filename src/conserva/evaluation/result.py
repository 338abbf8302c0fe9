"""The result of an evaluation: areas with intervals, curves, conservation, differences between methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..results.result import Result
from ..results.schema import Correlation, Count, Share, uneven, unknown
from .comparison import Compared, Interval, Pair, is_random

METRICS = ("auac", "au_mse", "aupc", "comprehensiveness", "sufficiency")
"""The metrics of every evaluation, in the order in which they are shown."""

ADDITIONAL = ("srg", "lds", "tau")
"""The metrics that are measured on request, in the order in which they are shown."""

HIGHER_IS_BETTER = {name: name not in ("au_mse", "sufficiency") for name in (*METRICS, *ADDITIONAL)}
"""Metric -> whether a higher value is better."""


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
    """`activation`, `pruning` and `pruning_probability`; with `srg` also `least_first` and `most_first`, the logit of
    the target as features are removed, and `most_first_probability`."""
    reference: bool = False
    """Whether the row is a reference, not a method: leave-one-out, or the intensity of pixels."""
    srg: Interval | None = None
    """Symmetric relevance gain: the mean difference of `least_first` and `most_first`. None if it was not measured."""
    lds: Interval | None = None
    """Linear datamodelling score: the rank correlation of the target's logit with the sum of the scores that are kept,
    over random subsets of the features."""
    tau: Interval | None = None
    """Kendall's tau-b of the scores and the decreases of the target's logit when each feature is removed alone."""

    @property
    def is_random(self) -> bool:
        """Whether this is the random order, with any seed."""
        return is_random(self.method)


@dataclass(frozen=True, repr=False)
class Evaluation(Result, Compared[MethodResult]):
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
    _better = HIGHER_IS_BETTER

    methods: tuple[MethodResult, ...]
    pairs: tuple[Pair, ...]
    protocol: Mapping[str, Any]
    """`name`, `target`, `mask`, `special`, `steps` (None: one per feature), and other settings that affect results;
    `srg`, `lds` and `tau` if they were measured."""
    samples: Count
    accuracy: Share | None
    """The accuracy of the model on these samples, if labels are known."""
    model: str
    data: str
    refused: Mapping[str, str] = field(default_factory=dict)
    """Method -> why it does not apply to the model."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    without_value: Mapping[str, Count] = field(default_factory=dict)
    """`lds`, `tau` -> the number of samples on which it is not defined, if any; its means are over the others."""

    def _flaws(self) -> Iterator[str]:
        yield from super()._flaws()
        for metric in self.without_value:
            yield from unknown("without_value", metric, ADDITIONAL)
