"""The graph experiment: tables 1 and 2 on datasets of graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...datasets.graph import Graph as GraphData
from ...datasets.graph_catalogue import graph_dataset
from ...evaluation.result import Evaluation
from ...explaining.explain import explain
from ...results.explanation import Explanation
from ...tasks.graph import MASKS, Graph
from ...tasks.loading import load
from ..training.classifier import Classifier
from ..training.graphs import GraphClassifier
from ..training.recipe import Recipe
from .ledgers import ledgers_of
from .plan import Plan, Slice
from .result import GraphResult, TrainedGraph
from .rows import GRAPH_ROWS

EXAMPLES = 10
"""How many graphs are shown (Ali et al. 2022, figure 6 and appendix E)."""

SHOWN = ("gi", "ah", "ah+ln", "exact", "gae", "rollout", "a-flow", "a-last", "random")
"""The methods they are shown by."""


@dataclass(frozen=True)
class GraphPlan(Plan):
    """One run of the graph experiment."""

    masks: tuple[str, ...] = MASKS
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the model that are not the dataset's own, as pre_norm=False."""

    rows = GRAPH_ROWS
    quick_slice = Slice(count=4, steps=5)
    quick_count = 100

    def classifier(self, dataset: str, reading: Callable[[int, int], None] | None = None) -> Classifier:
        return GraphClassifier(dataset, self.shape, reading=reading)

    def recipe(self, classifier: Classifier) -> Recipe:
        recipe = classifier.recipe()
        return replace(recipe, epochs=2, learning_rate=1e-3) if self.quick else recipe

    def parts(self) -> tuple[str, ...]:
        return self.masks

    def task(self, model: Path, dataset: str) -> Graph:
        task = load(model)
        assert isinstance(task, Graph)
        task.name = dataset
        return task

    def data(self, dataset: str) -> list[GraphData]:
        return graph_dataset(dataset).read("test", count=self.slice(dataset).count)

    def options(self, dataset: str, part: str) -> dict[str, Any]:
        return {"mask": part, "steps": self.slice(dataset).steps}

    def result(
        self,
        classifier: Classifier,
        model: Path,
        trained: Sequence[Mapping[str, Any]],
        evaluations: Mapping[str, Sequence[Evaluation]],
        pooled: Mapping[str, Evaluation],
    ) -> GraphResult:
        def means(metric: str, i: int) -> dict[str, dict[str, float]]:
            return {
                mask: {row.method: getattr(row, metric).mean for row in each[i].methods}
                for mask, each in evaluations.items()
            }

        first, dataset = trained[0], classifier.dataset
        task, graphs = self.task(model, dataset), self.data(dataset)
        return GraphResult(
            dataset=dataset,
            title=classifier.title,
            labels=classifier.labels,
            metric=classifier.metric,
            graphs=first["graphs"],
            majority=first["majority"],
            recipe=first["recipe"],
            shape=first["shape"],
            trained=tuple(
                TrainedGraph(
                    seed=one["seed"],
                    test_accuracy=one["test_accuracy"],
                    test_roc_auc=one.get("test_roc_auc"),
                    validation=one.get(f"validation_{classifier.metric}"),
                    kept_epoch=one["kept_epoch"],
                    epochs=one["last_epoch"],
                    weights=one["weights"],
                    auac=means("auac", i),
                    au_mse=means("au_mse", i),
                )
                for i, one in enumerate(trained)
            ),
            evaluations=pooled,
            books=ledgers_of(task, graphs),
            examples=_examples(task, graphs),
            provenance={**first["provenance"], "device": self.device, "quick": self.quick},
            parameters=first["trained_parameters"],
        )


def _examples(task: Graph, graphs: Sequence[GraphData]) -> tuple[Explanation, ...]:
    """Return explanations of some graphs, graph by graph, of their true classes."""
    chosen = list(_first_of_each_class(graphs))[:EXAMPLES]
    targets = [one.label for one in chosen]
    shown = [explain(task, chosen, targets, method=method) for method in SHOWN]
    return tuple(one for same_graph in zip(*shown, strict=True) for one in same_graph)


def _first_of_each_class(graphs: Sequence[GraphData]) -> Iterator[GraphData]:
    """Yield the first graph of every class, then the second of every class, and so on."""
    of_class: dict[int | None, list[GraphData]] = {}
    for one in graphs:
        of_class.setdefault(one.label, []).append(one)
    for place in range(max(map(len, of_class.values()))):
        for label in sorted(of_class, key=str):
            yield from of_class[label][place : place + 1]
