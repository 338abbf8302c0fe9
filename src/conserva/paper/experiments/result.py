"""The results of the experiments, one for each dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from ...evaluation.result import Conservation, Evaluation, MethodResult
from ...results.explanation import Explanation
from ...results.result import Stored
from ...results.schema import Correlation, Count, Share, uneven, unknown, unnamed, written
from .rows import GRAPH_ROWS, RULES, TEXT_ROWS, method_of

DIGITS = 5
"""Significant digits of the numbers that are stored."""


class ExperimentResult(Stored):
    """The base class of the results."""

    def to_json(self) -> str:
        """Return the result as JSON, with numbers rounded."""
        return written(shortened(asdict(self)), self._schema, indent=None)  # type: ignore[call-overload]


@dataclass(frozen=True)
class TrainedText:
    """One classifier of texts: its accuracy, and each method's areas on it."""

    seed: int
    validation_accuracy: Share
    test_accuracy: Share
    """On the whole test split."""
    best_epoch: int
    epochs: int
    weights: str
    auac: Mapping[str, float]
    """Method -> mean."""
    au_mse: Mapping[str, float]

    @property
    def validation(self) -> float:
        return self.validation_accuracy

    @property
    def kept_epoch(self) -> int:
        return self.best_epoch

    def means(self, metric: str, mask: str) -> Mapping[str, float]:
        """Return each method's mean."""
        found: Mapping[str, float] = getattr(self, metric)
        return found


@dataclass(frozen=True)
class TextResult(ExperimentResult):
    """The classifiers of one dataset of texts."""

    _schema = "conserva/text-experiment/1"
    _noun = "result of the text experiment"
    rows = TEXT_ROWS
    metric = "accuracy"

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
    trained: tuple[TrainedText, ...]
    evaluation: Evaluation
    """Of the mean over classifiers: every sample's points are averaged over them before anything else."""
    sentences: tuple[Explanation, ...]
    """Some texts by some methods, on the classifier of the first seed."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> Mapping[str, int]:
        return self.texts

    @property
    def evaluations(self) -> Mapping[str, Evaluation]:
        """The evaluation, under the name "": there is one way to mask tokens."""
        return {"": self.evaluation}

    @property
    def examples(self) -> tuple[Explanation, ...]:
        return self.sentences

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the models and of their training."""
        return self.recipe

    @property
    def extent(self) -> str:
        """How much of each sample was evaluated."""
        return f"{self.evaluated_tokens} tokens" if self.evaluated_tokens else ""

    def ledgers(self) -> dict[str, dict[str, float | None]]:
        """Return the entries of the ledger under each rule set that has a result, by its title."""
        known = {title: self.conservation(title) for title in RULES}
        return {
            title: {"corr.": one.correlation, "slope": one.slope, "distance from the output": one.distance}
            for title, one in known.items()
            if one is not None
        }

    def conservation(self, title: str) -> Conservation | None:
        """Return the sums of scores beside the outputs, or None where the method does not apply."""
        found = row_of(self.evaluation, method_of(self.rows, title))
        return None if found is None else found.conservation

    def _flaws(self) -> Iterator[str]:
        yield from unnamed("dataset", self.dataset)  # pictures are named after it
        if not self.trained:
            yield "trained has no entry"
        yield from (f"evaluation.{flaw}" for flaw in self.evaluation.uncompared("auac", "au_mse"))


@dataclass(frozen=True)
class TrainedGraph:
    """One classifier of graphs: what it reached, and each method's areas on it."""

    seed: int
    test_accuracy: Share
    test_roc_auc: Share | None
    """On the whole test split; None where there are more than two classes."""
    validation: float | None
    """The dataset's metric on the validation split; None where the model was trained on that split too."""
    kept_epoch: int
    epochs: int
    weights: str
    auac: Mapping[str, Mapping[str, float]]
    """Masking -> method -> mean."""
    au_mse: Mapping[str, Mapping[str, float]]

    def means(self, metric: str, mask: str) -> Mapping[str, float]:
        """Return each method's mean under a masking."""
        found: Mapping[str, float] = getattr(self, metric)[mask]
        return found


@dataclass(frozen=True)
class RuleLedger:
    """The ledger of the true class's logit under a rule set, in float64: logit = nodes + virtual + biases + gap."""

    rules: str
    correlation: Correlation
    """Of the logit with the relevance of nodes and virtual node together (Ali et al. 2022, figure 3)."""
    slope: float
    correlation_without_biases: Correlation
    """The same after the relevance of biases is subtracted from the logit."""
    output: float
    """The mean of |logit|."""
    nodes: float
    virtual: float
    biases: float
    gap: float
    """The means of |entry| over graphs."""
    largest_gap: float
    outputs: tuple[float, ...]
    sums: tuple[float, ...]
    """The points of the scatter plot: logits, and relevance of nodes and virtual node together."""

    def _flaws(self) -> Iterator[str]:
        yield from uneven(self, "outputs", "sums")


@dataclass(frozen=True)
class GraphResult(ExperimentResult):
    """The classifiers of one dataset of graphs."""

    _schema = "conserva/graph-experiment/1"
    _noun = "result of the graph experiment"
    rows = GRAPH_ROWS

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
    trained: tuple[TrainedGraph, ...]
    evaluations: Mapping[str, Evaluation]
    """Masking -> of the mean over models: every sample's points are averaged over them before anything else."""
    books: tuple[RuleLedger, ...]
    """Ledgers of the first model."""
    examples: tuple[Explanation, ...]
    """Some graphs by some methods, on the first model."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    """How many parameters were trained in each model; None where that was not stored."""

    @property
    def samples(self) -> Mapping[str, int]:
        return self.graphs

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the models and of their training."""
        return {**self.shape, **({} if self.parameters is None else {"parameters": self.parameters}), **self.recipe}

    @property
    def extent(self) -> str:
        """In how many steps nodes were added and removed."""
        steps = dict.fromkeys(one.protocol.get("steps") for one in self.evaluations.values())
        return " or ".join("one node at a time" if one is None else f"{one} steps" for one in steps)

    def ledgers(self) -> dict[str, dict[str, float | None]]:
        """Return the entries of the ledger under each rule set, by its title."""
        titles = {row.method: row.title for row in self.rows}
        return {
            titles[one.rules]: {
                "corr.": one.correlation,
                "slope": one.slope,
                "corr. without biases": one.correlation_without_biases,
                "|logit|": one.output,
                "|nodes|": one.nodes,
                "|virtual node|": one.virtual,
                "|biases|": one.biases,
                "|gap|": one.gap,
                "largest |gap|": one.largest_gap,
            }
            for one in self.books
        }

    def conservation(self, title: str) -> Conservation | None:
        """Return the sums of nodes and virtual node beside the outputs, or None where there is no ledger."""
        rules = method_of(self.rows, title)
        found = (one for one in self.books if one.rules == rules)
        return next((Conservation(x.correlation, x.slope, x.gap, x.outputs, x.sums) for x in found), None)

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
        known = [method_of(self.rows, title) for title in RULES]
        for i, ledger in enumerate(self.books):
            yield from unknown(f"books[{i}].rules", ledger.rules, known)


AnyResult: TypeAlias = TextResult | GraphResult


def reached(result: AnyResult) -> list[float]:
    """Return the dataset's metric on the test split, for each model."""
    return [float(getattr(one, f"test_{result.metric}")) for one in result.trained]


def row_of(evaluation: Evaluation, method: str) -> MethodResult | None:
    """Return a method's result, or None where it does not apply."""
    return next((one for one in evaluation.methods if one.method == method), None)


def shortened(value: Any) -> Any:
    """Return a value with its numbers rounded to the digits that are stored."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: shortened(one) for key, one in value.items()}
    return [shortened(one) for one in value] if isinstance(value, (list, tuple)) else value
