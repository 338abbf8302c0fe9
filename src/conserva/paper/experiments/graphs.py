"""The graph columns of tables 1 and 2: train what is missing, evaluate under every masking, put models together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..._util.files import write_text
from ...datasets.graph import Graph as GraphData
from ...datasets.graph_catalogue import graph_dataset
from ...evaluation.result import Evaluation
from ...evaluation.run import evaluate
from ...explaining.explain import explain
from ...results.explanation import Explanation
from ...tasks.graph import Graph
from ...tasks.loading import load
from ..training.graphs import GraphClassifier
from ..training.record import read_training
from ..training.run import train
from .graph_books import books_of
from .graph_plan import GraphPlan
from .graph_result import GraphResult, TrainedGraphormer
from .jobs import Say, run_jobs
from .pooling import pool

RUNS, MODEL = "runs", "model"
EXAMPLES = 10
"""How many graphs are shown (Ali et al. 2022, figure 6 and appendix E)."""

SHOWN = ("gi", "ah", "ah+ln", "exact", "gae", "rollout", "a-flow", "a-last", "random")
"""The methods they are shown by."""


def reproduce_graphs(plan: GraphPlan, out: Path, *, jobs: int = 1, say: Say | None = None) -> list[GraphResult]:
    """Run the experiment, or what is missing of it, and write `<dataset>.json` for every dataset."""
    for name in plan.datasets:
        graph_dataset(name)  # an unknown one is refused before anything runs
    models = [(plan, out, name, seed) for name in reversed(plan.datasets) for seed in plan.seeds]
    run_jobs(_train, models, jobs, say, "models")
    run_jobs(_evaluate, [(*one, mask) for one in models for mask in plan.masks], jobs, say, "evaluations")
    results = []
    for number, name in enumerate(plan.datasets):
        if say is not None:
            say("putting together", number, len(plan.datasets))
        results.append(_together(plan, out, name))
        write_text(out / f"{name}.json", results[-1].to_json() + "\n")
    return results


def _train(plan: GraphPlan, out: Path, name: str, seed: int, say: Say | None = None) -> None:
    """Train one model; one that is there already stays as it is."""
    reading = None if say is None else lambda done, total: say(f"superpixels of {name}", done, total)
    classifier = GraphClassifier(name, plan.shape, reading=reading)
    train(
        classifier,
        _folder(out, name, seed) / MODEL,
        seed=seed,
        recipe=plan.recipe(classifier.recipe()),
        count=plan.training_count(),
        device=plan.device,
        progress=None if say is None else lambda done, total: say(f"training {name}, seed {seed}", done, total),
    )


def _evaluate(plan: GraphPlan, out: Path, name: str, seed: int, mask: str, say: Say | None = None) -> None:
    """Evaluate every method on one model under one masking; what is done already stays as it is."""
    folder = _folder(out, name, seed) / mask
    path = folder / "evaluation.json"
    task = _task(out, name, seed)
    task.model.to(plan.device)  # type: ignore[arg-type]  # transformers wraps `to` without its type
    found = evaluate(  # what is done already is taken from the folder, if it was done in the same way
        task,
        _graphs(plan, name),
        plan.methods(),
        protocol="paper",
        mask=mask,
        steps=plan.slice(name).steps,
        out=folder,
        progress=None if say is None else lambda done, total: say(f"{name}, seed {seed}, {mask}", done, total),
    )
    write_text(path, found.to_json() + "\n")


def _together(plan: GraphPlan, out: Path, name: str) -> GraphResult:
    """Return one result for all models of a dataset."""
    data = graph_dataset(name)
    folders = [_folder(out, name, seed) for seed in plan.seeds]
    trained = [read_training(folder / MODEL) for folder in folders]
    evaluations = {
        mask: [Evaluation.load(folder / mask / "evaluation.json") for folder in folders] for mask in plan.masks
    }
    first, task, graphs = trained[0], _task(out, name, plan.seeds[0]), _graphs(plan, name)
    return GraphResult(
        dataset=name,
        title=data.title,
        labels=tuple(data.labels),
        metric=data.metric,
        graphs=first["graphs"],
        majority=first["majority"],
        recipe=first["recipe"],
        shape=first["shape"],
        trained=tuple(
            TrainedGraphormer(
                seed=one["seed"],
                test_accuracy=one["test_accuracy"],
                test_roc_auc=one.get("test_roc_auc"),
                validation=one.get(f"validation_{data.metric}"),
                kept_epoch=one["kept_epoch"],
                epochs=one["last_epoch"],
                weights=one["weights"],
                auac={
                    mask: {row.method: row.auac.mean for row in each[i].methods} for mask, each in evaluations.items()
                },
                au_mse={
                    mask: {row.method: row.au_mse.mean for row in each[i].methods} for mask, each in evaluations.items()
                },
            )
            for i, one in enumerate(trained)
        ),
        evaluations={
            mask: pool([folder / mask for folder in folders], each, f"{data.title} test")
            for mask, each in evaluations.items()
        },
        books=books_of(task, graphs),
        examples=_examples(task, graphs),
        provenance={**first["provenance"], "device": plan.device, "quick": plan.quick},
        parameters=first["trained_parameters"],
    )


def _examples(task: Graph, graphs: Sequence[GraphData]) -> tuple[Explanation, ...]:
    """Return explanations of some graphs, graph by graph, of their true classes."""
    chosen = list(_first_of_each_class(graphs))[:EXAMPLES]
    targets = [one.label for one in chosen]
    shown = [explain(task, chosen, targets, method) for method in SHOWN]
    return tuple(one for same_graph in zip(*shown, strict=True) for one in same_graph)


def _first_of_each_class(graphs: Sequence[GraphData]) -> Iterator[GraphData]:
    """Yield the first graph of every class, then the second of every class, and so on: chosen by no eye."""
    of_class: dict[int | None, list[GraphData]] = {}
    for one in graphs:
        of_class.setdefault(one.label, []).append(one)
    for place in range(max(map(len, of_class.values()))):
        for label in sorted(of_class, key=str):
            yield from of_class[label][place : place + 1]


def _graphs(plan: GraphPlan, name: str) -> list[GraphData]:
    """Return the test graphs that are evaluated."""
    return graph_dataset(name).read("test", count=plan.slice(name).count)


def _folder(out: Path, name: str, seed: int) -> Path:
    return out / RUNS / name / f"seed-{seed}"


def _task(out: Path, name: str, seed: int) -> Graph:
    task = load(_folder(out, name, seed) / MODEL)
    assert isinstance(task, Graph)
    task.name = name
    return task
