"""What the experiment found on one dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...evaluation.result import Evaluation
from ...results.explanation import Explanation
from ...results.result import Stored
from ...results.schema import Count, Share, unlike, unnamed, written

DIGITS = 5
"""Significant digits that are kept."""


class ExperimentResult(Stored):
    """The base class of what an experiment found on one dataset."""

    def to_json(self) -> str:
        """Return the result as JSON, numbers cut to the digits that are shown and a few more."""
        return written(shortened(asdict(self)), self._schema, indent=None)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Trained:
    """One classifier: what it reached, and each method's areas on it."""

    seed: int
    validation_accuracy: Share
    test_accuracy: Share
    """On the whole test split."""
    best_epoch: int
    epochs: int
    weights: str
    auac: Mapping[str, float]
    au_mse: Mapping[str, float]


@dataclass(frozen=True)
class TextResult(ExperimentResult):
    """All classifiers of one dataset together."""

    _schema = "conserva/text-experiment/1"
    _noun = "result of the text experiment"

    dataset: str
    title: str
    labels: tuple[str, ...]
    texts: Mapping[str, Count]
    """Split -> how many texts there are after cleaning."""
    majority: Share
    """The share of the most frequent class in the test split."""
    recipe: Mapping[str, Any]
    evaluated_tokens: int | None
    """How many tokens of a text were evaluated at most; None for all that the classifier reads."""
    trained: tuple[Trained, ...]
    evaluation: Evaluation
    """Of the mean over classifiers: every sample's points are averaged over them before anything else."""
    sentences: tuple[Explanation, ...]
    """Some texts by some methods, on the classifier of the first seed."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def accuracy(self) -> float:
        """Return the mean test accuracy."""
        return sum(one.test_accuracy for one in self.trained) / len(self.trained)

    def _flaws(self) -> Iterator[str]:
        yield from unnamed("dataset", self.dataset)  # pictures are named after it
        if not self.trained:
            yield "trained has no entry"
        yield from (f"evaluation.{flaw}" for flaw in self.evaluation.uncompared("auac", "au_mse"))
        yield from unlike("texts", self.texts, dict.fromkeys(("train", "validation", "test"), int))
        yield from unlike("recipe", self.recipe, {"learning_rate": float, "embeddings": str, "as_released": bool})


def shortened(value: Any) -> Any:
    """Return a value with its numbers cut to the digits that are kept."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: shortened(one) for key, one in value.items()}
    return [shortened(one) for one in value] if isinstance(value, (list, tuple)) else value
