"""What the graph experiment found on one dataset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..explanation import Explanation
from ..faithfulness.evaluation import Evaluation
from ..saving import loaded
from ..schema import parsed
from .result import shortened

SCHEMA = "conserva/graph-experiment/1"


@dataclass(frozen=True)
class TrainedGraphormer:
    """One model: what it reached, and each method's areas on it."""

    seed: int
    test_accuracy: float
    test_roc_auc: float | None
    """On the whole test split; None where there are more than two classes."""
    validation: float | None
    """The dataset's metric on the validation split; None where that was trained on too."""
    kept_epoch: int
    epochs: int
    weights: str
    auac: Mapping[str, Mapping[str, float]]
    """Masking -> method -> mean."""
    au_mse: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class BooksOfRules:
    """Where the logit of the true class went under a rule set, in float64: logit = nodes + virtual + biases + gap."""

    rules: str
    correlation: float
    """Of the logit with the relevance of nodes and virtual node together (Ali et al. 2022, figure 3)."""
    slope: float
    correlation_without_biases: float
    """The same after what went to biases is taken off the logit."""
    output: float
    """The mean of |logit|."""
    nodes: float
    virtual: float
    biases: float
    gap: float
    """The means of the entries' sizes, |entry|, over graphs."""
    largest_gap: float
    outputs: tuple[float, ...]
    sums: tuple[float, ...]
    """The points of the scatter plot: logits, and relevance of nodes and virtual node together."""


@dataclass(frozen=True)
class GraphResult:
    """All models of one dataset together."""

    dataset: str
    title: str
    labels: tuple[str, ...]
    metric: str
    """What the paper measures on it: `accuracy` or `roc_auc`."""
    graphs: Mapping[str, int]
    """Split -> how many graphs."""
    majority: float
    """The share of the most frequent class in the test split."""
    recipe: Mapping[str, Any]
    shape: Mapping[str, Any]
    trained: tuple[TrainedGraphormer, ...]
    evaluations: Mapping[str, Evaluation]
    """Masking -> of the mean over models: every sample's points are averaged over them before anything else."""
    books: tuple[BooksOfRules, ...]
    """Of the first model."""
    examples: tuple[Explanation, ...]
    """Some graphs by some methods, on the first model."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    """How many numbers were trained in each model; None where that was not kept."""

    def reached(self) -> float:
        """Return the mean of the dataset's metric on the test split."""
        values = [one.test_accuracy if self.metric == "accuracy" else one.test_roc_auc or 0.0 for one in self.trained]
        return sum(values) / len(values)

    def to_json(self) -> str:
        """Return the result as JSON, numbers cut to the digits that are shown and a few more."""
        found = shortened({"schema": SCHEMA, **asdict(self)})
        return json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> GraphResult:
        """Return the result that `to_json` wrote."""
        found = parsed(text, SCHEMA, "result of the graph experiment")
        books: list[dict[str, Any]] = [
            {key: tuple(v) if isinstance(v, list) else v for key, v in one.items()} for one in found["books"]
        ]
        return cls(
            **{
                **found,
                "labels": tuple(found["labels"]),
                "trained": tuple(TrainedGraphormer(**one) for one in found["trained"]),
                "evaluations": {mask: Evaluation.from_fields(one) for mask, one in found["evaluations"].items()},
                "books": tuple(BooksOfRules(**one) for one in books),
                "examples": tuple(Explanation.from_fields(one) for one in found["examples"]),
            }
        )

    @classmethod
    def load(cls, path: str | Path) -> GraphResult:
        """Read a result that was saved as JSON."""
        return cls.from_json(loaded(path))
