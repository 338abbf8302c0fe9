"""The result of an evaluation: areas with intervals, curves, conservation, differences between methods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..saving import loaded
from ..schema import parsed

SCHEMA = "conserva/evaluation/1"

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


@dataclass(frozen=True)
class Curve:
    """A curve's mean over samples at each share of the features, with 95 % intervals."""

    fractions: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Conservation:
    """How the sum of the scores follows the output, over samples (Ali et al. 2022, figure 3)."""

    correlation: float | None
    """None where the sums do not vary."""
    slope: float | None
    gap: float
    """The mean of |output - sum of the scores|."""
    outputs: tuple[float, ...]
    sums: tuple[float, ...]
    """For each sample the explained number, and the sum of its scores: the points of the scatter plot."""


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
    """Whether the row is no method of explanation but a yardstick: leave-one-out, or the intensity of pixels."""


@dataclass(frozen=True)
class Pair:
    """The difference of two methods, a minus b, on the same samples."""

    metric: str
    a: str
    b: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Evaluation:
    """Every method on the same samples, under one protocol."""

    methods: tuple[MethodResult, ...]
    pairs: tuple[Pair, ...]
    protocol: Mapping[str, Any]
    """`name`, `target`, `mask`, `special`, `steps` (None: one for each feature), and what else decides the numbers."""
    samples: int
    accuracy: float | None
    """How often the model is right on these samples, where labels are known."""
    model: str
    data: str
    refused: Mapping[str, str] = field(default_factory=dict)
    """Method -> why it does not apply to the model."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the evaluation as JSON."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, ensure_ascii=False, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Evaluation:
        """Return the evaluation that `to_json` wrote."""
        return cls.from_fields(parsed(text, SCHEMA, "evaluation"))

    @classmethod
    def from_fields(cls, found: Mapping[str, Any]) -> Evaluation:
        """Return the evaluation whose fields were read from JSON."""
        return cls(
            **{
                **found,
                "methods": tuple(_method(one) for one in found["methods"]),
                "pairs": tuple(Pair(**one) for one in found["pairs"]),
            }
        )

    @classmethod
    def load(cls, path: str | Path) -> Evaluation:
        """Read an evaluation that was saved as JSON."""
        return cls.from_json(loaded(path))

    def show(self) -> None:
        """Print the table to the terminal."""
        from ..views.table import show

        show(self)


def _method(found: dict[str, Any]) -> MethodResult:
    areas = {metric: Interval(**found[metric]) for metric in METRICS}
    kept: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found["conservation"].items()}
    curves = {name: Curve(**{key: tuple(v) for key, v in one.items()}) for name, one in found["curves"].items()}
    return MethodResult(
        found["method"], **areas, conservation=Conservation(**kept), curves=curves, reference=found["reference"]
    )
