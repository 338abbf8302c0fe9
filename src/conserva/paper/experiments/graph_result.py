"""What the graph experiment found on one dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...evaluation.result import Evaluation
from ...results.explanation import Explanation
from ...results.schema import Correlation, Count, Share, uneven, unknown, unlike, unnamed
from .graph_plan import RULES
from .result import ExperimentResult

_RECIPE: Mapping[str, Any] = {
    "learning_rate": float,
    "batch_size": int,
    "epochs": int,
    "weight_decay": float,
    "warm_up": float,
    "average": float,
    "keep": str,
}
_SHAPE: Mapping[str, Any] = {
    "num_hidden_layers": int,
    "hidden_size": int,
    "num_attention_heads": int,
    "ffn_size": int,
    "edge_values": int | None,
    "max_hops": int,
}
_DEFAULTS = ("weight_decay", "warm_up", "average", "keep", "edge_values")
"""What of the settings is shown, and what of that may be missing."""


@dataclass(frozen=True)
class TrainedGraphormer:
    """One model: what it reached, and each method's areas on it."""

    seed: int
    test_accuracy: Share
    test_roc_auc: Share | None
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
    correlation: Correlation
    """Of the logit with the relevance of nodes and virtual node together (Ali et al. 2022, figure 3)."""
    slope: float
    correlation_without_biases: Correlation
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

    def _flaws(self) -> Iterator[str]:
        yield from uneven(self, "outputs", "sums")


@dataclass(frozen=True)
class GraphResult(ExperimentResult):
    """All models of one dataset together."""

    _schema = "conserva/graph-experiment/1"
    _noun = "result of the graph experiment"

    dataset: str
    title: str
    labels: tuple[str, ...]
    metric: str
    """What the paper measures on it: `accuracy` or `roc_auc`."""
    graphs: Mapping[str, Count]
    """Split -> how many graphs."""
    majority: Share
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

    def _flaws(self) -> Iterator[str]:
        yield from unnamed("dataset", self.dataset)  # pictures are named after it
        yield from unknown("metric", self.metric, ("accuracy", "roc_auc"))
        for name in ("trained", "evaluations"):
            if not getattr(self, name):
                yield f"{name} has no entry"
        for mask, found in self.evaluations.items():
            yield from (f"evaluations[{mask!r}].{flaw}" for flaw in found.uncompared("auac", "au_mse"))
        for i, one in enumerate(self.trained):
            if self.metric == "roc_auc" and one.test_roc_auc is None:
                yield f"trained[{i}].test_roc_auc is null, and it is what is measured"
            for areas in ("auac", "au_mse"):
                if set(getattr(one, areas)) != set(self.evaluations):
                    yield f"trained[{i}].{areas} has other maskings than evaluations"
        for i, books in enumerate(self.books):
            yield from unknown(f"books[{i}].rules", books.rules, RULES)
        yield from unlike("recipe", self.recipe, _RECIPE, _DEFAULTS)
        yield from unknown("recipe.keep", self.recipe.get("keep", "last"), ("best", "last"))
        hops = () if self.shape.get("edge_values") else ("max_hops",)
        yield from unlike("shape", self.shape, _SHAPE, (*_DEFAULTS, *hops))
