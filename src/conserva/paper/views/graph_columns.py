"""The columns of the graph experiment's tables: a dataset under a masking; and the words that its views share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...evaluation.result import Evaluation, Interval
from ..experiments.findings import Verdict, advantage, best_of, means_of, row_of, verdict
from ..experiments.graph_plan import GRAPH_OURS, GRAPH_ROWS
from ..experiments.graph_result import GraphResult

TITLE_OF: Mapping[str, str] = {row.method: row.title for row in GRAPH_ROWS}

PAPER = tuple(row for row in GRAPH_ROWS if row.group == "paper")
"""The rows of the paper's own tables."""

MEASURES: Mapping[str, str] = {"accuracy": "accuracy", "roc_auc": "ROC-AUC"}
"""What the metrics of the datasets are called."""

MASKINGS: Mapping[str, str] = {
    "token": "nothing looks at a node that was taken away; the others keep degrees, distances and paths of the whole "
    "graph",
    "induced": "degrees, distances and paths are found anew in the sub-graph of the nodes that are left",
    "blank": "a node stays in its place and says nothing: an atom without features, a superpixel that is black",
}
"""What becomes of nodes that are taken away."""


@dataclass(frozen=True)
class Measured:
    """One dataset under one masking."""

    result: GraphResult
    mask: str

    @property
    def evaluation(self) -> Evaluation:
        return self.result.evaluations[self.mask]

    @property
    def title(self) -> str:
        return f"{name_of(self.result)} {self.mask}"

    def has(self, *methods: str) -> bool:
        """Return whether all methods have a result."""
        return all(row_of(self.evaluation, method) is not None for method in methods)

    def best(self, metric: str) -> str | None:
        """Return the method of the paper with the best mean."""
        return best_of(self.evaluation, metric, rows=GRAPH_ROWS)

    def verdict(self, metric: str) -> Verdict | None:
        """Return how the paper's own method stands among the others of the paper; None where it has no result."""
        return verdict(self.evaluation, metric, GRAPH_OURS, rows=GRAPH_ROWS) if self.has(GRAPH_OURS) else None

    def is_best(self, metric: str) -> bool:
        """Return whether it beats them all, every paired interval leaving out 0."""
        found = self.verdict(metric)
        return found is not None and found.best

    def means(self, metric: str) -> dict[str, float]:
        """Return the means of the paper's methods."""
        return means_of(self.evaluation, metric, PAPER)

    def gain(self, metric: str, a: str, b: str) -> Interval:
        """Return by how much a is better than b on the same graphs: positive is better, whatever the metric."""
        return advantage(self.evaluation, metric, a, b)


def columns(results: Sequence[GraphResult]) -> list[Measured]:
    """Return every dataset under every masking."""
    return [Measured(one, mask) for one in results for mask in one.evaluations]


def name_of(result: GraphResult) -> str:
    """Return a dataset's name as it stands above a column, where a title is too long: BACE, BACE-random, MNIST."""
    first, dash, rest = result.dataset.partition("-")
    return f"{first.upper()}{dash}{rest}"


def is_quick(results: Sequence[GraphResult]) -> bool:
    """Return whether the numbers mean nothing."""
    return any(one.provenance.get("quick") for one in results)


def steps_of(result: GraphResult) -> str:
    """Say in how many steps nodes come and go."""
    steps = {mask: one.protocol.get("steps") for mask, one in result.evaluations.items()}
    words = ["one node at a time" if one is None else f"{one} steps" for one in dict.fromkeys(steps.values())]
    return " or ".join(words)


def samples_of(result: GraphResult) -> int:
    """Return how many graphs were evaluated."""
    return max(one.samples for one in result.evaluations.values())
