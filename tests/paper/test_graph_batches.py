"""Graphs to train on: batches with the logits of their graphs, ROC-AUC, the schedule and the datasets by name."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import conserva
from chains import IDS, NUMBERS, SHAPE, made
from conserva.datasets.graph import Graph, batch, structure
from conserva.datasets.graph_catalogue import GRAPH_DATASETS, GraphDataset, graph_dataset
from conserva.models import graphormer
from conserva.models.graphormer import Graphormer, GraphormerConfig, trusted_ids
from conserva.paper.training import graph_batches
from conserva.paper.training.graph_batches import GraphBatches
from conserva.paper.training.graph_recipe import GraphRecipe, graph_recipe_of
from conserva.paper.training.graph_trainer import GraphTrainer
from conserva.paper.training.measures import roc_auc

CPU = torch.device("cpu")


def model_of(data: GraphDataset = IDS, seed: int = 0, **changes: Any) -> Graphormer:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Graphormer(GraphormerConfig(**{**data.shape, **changes}))
        for parameter in model.parameters():  # far from where training starts, so that all of it matters
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


# Batches.


@pytest.mark.parametrize("how", ["shuffled", "by_length"])
@pytest.mark.parametrize("data", [IDS, NUMBERS], ids=["ids", "numbers"])
def test_a_padded_batch_has_the_logits_of_its_graphs(
    how: str, data: GraphDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_batches, "STRETCH", 2)
    monkeypatch.setattr(graph_batches, "AT_ONCE", 7)
    model, graphs = model_of(data), data.read("train")
    shown = [replace(graph, label=row) for row, graph in enumerate(graphs)]
    found = GraphBatches.of(shown, GraphormerConfig(**data.shape, num_labels=len(shown)), CPU)
    assert len(found) == len(graphs)
    batches = found.shuffled(5, torch.Generator().manual_seed(0)) if how == "shuffled" else found.by_length(12)
    seen: list[int] = []
    for inputs, rows in batches:
        width = inputs["nodes"].shape[1]
        assert width == max(len(graphs[row]) for row in rows.tolist())
        assert len(rows) <= 5 if how == "shuffled" else len(rows) * width <= 12
        logits = model(**inputs).logits
        for row, one, mask in zip(rows.tolist(), logits, inputs["attention_mask"], strict=True):
            assert mask.sum() == 1 + len(graphs[row])
            alone = batch([graphs[row]], [structure(graphs[row], SHAPE["max_distance"], SHAPE["max_hops"])])
            torch.testing.assert_close(one, model(**alone).logits[0], rtol=1e-5, atol=1e-6)
        seen.extend(rows.tolist())
    assert sorted(seen) == list(range(len(graphs)))


def test_tables_are_of_small_types() -> None:
    found = GraphBatches.of(made("train"), GraphormerConfig(**IDS.shape), CPU)
    assert found.paths is not None
    tables = (found.nodes, found.degrees, found.distances, found.paths)
    assert [table.element_size() for table in tables] == [2, 2, 1, 1]
    wide = GraphormerConfig(**{**IDS.shape, "node_values": 100_000, "edge_values": 1_000})
    large = Graph([[99_999], [1]], [[0, 1], [1, 0]], [999, 998], 0)
    inputs, _ = next(GraphBatches.of([large], wide, CPU).by_length(9))
    assert inputs["nodes"].flatten().tolist() == [99_999, 1]
    assert sorted(set(inputs["paths"].flatten().tolist())) == [0, 998, 999]


@pytest.mark.parametrize(
    ("changes", "message"),
    {
        "no label": ({"label": None}, r"graphs\[1\] \('odd'\) has the label None: give one of 0 to 1"),
        "another label": ({"label": 2}, "has the label 2"),
        "high id": ({"nodes": [[9, 1], [1, 1]]}, "nodes up to 9 in int64.*node_values=9 reads ids from 0 to 8"),
        "numbers": ({"nodes": [[0.5, 1.0], [1.0, 1.0]]}, "in float32"),
        "high edge": ({"edge_ids": [1, 5]}, "edge_ids up to 5: .*edge_values=5 reads ids from 1 to 4"),
        "no edges": ({"edge_ids": None}, "has no edge_ids"),
        "features": ({"nodes": [[1], [1]]}, "different numbers of features"),
    }.values(),
)
def test_graphs_that_a_model_cannot_read_are_named(changes: dict[str, Any], message: str) -> None:
    fine = {"nodes": [[1, 2], [3, 4]], "edges": [[0, 1], [1, 0]], "edge_ids": [1, 2], "label": 1, "name": "odd"}
    with pytest.raises(conserva.Error, match=message):
        GraphBatches.of([Graph(**fine), Graph(**{**fine, **changes})], GraphormerConfig(**IDS.shape), CPU)  # type: ignore[arg-type]


def test_other_numbers_and_no_graphs_are_refused() -> None:
    config = GraphormerConfig(**NUMBERS.shape)
    for nodes in ([[0.5], [1.0]], [[1, 2], [3, 4]]):
        with pytest.raises(conserva.Error, match="a model with node_features=2 reads as many numbers"):
            GraphBatches.of([Graph(nodes, [[0, 1], [1, 0]], label=0)], config, CPU)  # type: ignore[arg-type]
    with pytest.raises(conserva.Error, match="graphs is empty"):
        GraphBatches.of([], config, CPU)


def test_ids_are_trusted_only_where_that_is_said() -> None:
    model, inputs = model_of(), batch(made("test")[:1], [structure(made("test")[0], 4, 3)])
    wrong = {**inputs, "nodes": inputs["nodes"] + 100}
    with pytest.raises(conserva.Error, match="nodes has"):
        model(**wrong)
    with trusted_ids(), pytest.raises(IndexError):
        model(**wrong)
    with pytest.raises(conserva.Error, match="nodes has"):
        model(**wrong)


def test_no_step_of_training_waits_for_a_look_at_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {name: GraphBatches.of(made(name), GraphormerConfig(**IDS.shape), CPU) for name in ("train", "validation")}
    trainer = GraphTrainer(
        Graphormer(GraphormerConfig(**IDS.shape)), GraphRecipe(epochs=1), data["train"], data["validation"], 0, {}
    )
    monkeypatch.delattr(graphormer.torch, "aminmax")
    assert trainer.run(tmp_path).epoch == 1


# ROC-AUC and the schedule.


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_roc_auc_is_the_share_of_pairs(drawn: list[tuple[int, bool]]) -> None:
    scores, labels = (torch.tensor(column) for column in zip(*drawn, strict=True))
    if len(set(labels.tolist())) < 2:
        with pytest.raises(conserva.Error, match="needs samples of both classes"):
            roc_auc(scores / 7, labels.long())
        return
    pairs = list(itertools.product(scores[labels].tolist(), scores[~labels].tolist()))
    expected = sum(1.0 if one > zero else 0.5 if one == zero else 0.0 for one, zero in pairs) / len(pairs)
    assert roc_auc(scores / 7, labels.long()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [1 / 3, 2 / 3, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0]),
        ("cosine", [1 / 3, 2 / 3, *((1 + np.cos(np.pi * k / 8)) / 2 for k in range(9))]),
        ("constant", [1 / 3, 2 / 3, *[1] * 9]),
    ],
)
def test_the_rate_rises_and_falls(schedule: str, expected: list[float]) -> None:
    recipe = GraphRecipe(schedule=schedule, warm_up=0.2)
    assert [recipe.share(step, 10) for step in range(11)] == pytest.approx(expected)
    assert GraphRecipe(warm_up=0).share(0, 10) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, 0) for name in ("learning_rate", "epochs", "batch_size", "clip")]
    + [("warm_up", 1.0), ("average", 1.0), ("average", -0.1), ("weight_decay", -0.1), ("learning_rate", float("nan"))]
    + [("schedule", "square"), ("keep", "first")],
)
def test_a_recipe_of_nonsense_is_refused(name: str, value: Any) -> None:
    with pytest.raises(conserva.Error, match=f"{name}={value!r}"):
        GraphRecipe(**{name: value})


def test_the_best_of_nothing_is_refused() -> None:
    with pytest.raises(conserva.Error, match="keep='best' needs the validation split"):
        GraphRecipe(hold_out=False)
    assert (graph_recipe_of("bace").epochs, graph_recipe_of("mnist").epochs) == (1000, 10)
    assert (graph_recipe_of("mnist").hold_out, graph_recipe_of("mnist").keep) == (False, "last")


# The catalogue.


def test_the_datasets_of_the_paper() -> None:
    assert [(GRAPH_DATASETS[name].title, GRAPH_DATASETS[name].metric) for name in ("bace", "mnist")] == [
        ("BACE", "roc_auc"),
        ("MNIST superpixels", "accuracy"),
    ]
    assert graph_dataset("bace").labels == ("inactive", "active")
    assert graph_dataset("mnist").labels == tuple(map(str, range(10)))
    with pytest.raises(conserva.Error, match=r"'base' is unknown\. Did you mean 'bace'\? Choose one of bace"):
        graph_dataset("base")
    with pytest.raises(conserva.Error, match=r"split='dev' is unknown: chains has train, .* and train\+validation"):
        IDS.read("dev")
    with pytest.raises(conserva.Error, match="count=0 is too small"):
        IDS.read("train", count=0)


@pytest.mark.parametrize(("count", "train", "validation"), [(None, 24, 12), (9, 6, 3), (1, 1, 0)])
def test_train_and_validation_together(count: int | None, train: int, validation: int) -> None:
    names = [graph.name.split()[0] for graph in IDS.read("train+validation", count=count)]
    assert names == ["train"] * train + ["validation"] * validation


@pytest.fixture
def folder() -> Path:
    given = os.environ.get("CONSERVA_DATA")
    if not given:
        pytest.skip("CONSERVA_DATA names no folder of datasets")
    return Path(given)


def test_bace_is_read_and_fits_its_model(folder: Path) -> None:
    if not (folder / "bace").exists():
        pytest.skip("the folder has no BACE")
    pytest.importorskip("rdkit")
    data = graph_dataset("bace")
    assert {split: len(data.read(split, folder)) for split in data.sizes} == data.sizes
    some = data.read("train", folder, 5, seed=3)
    assert [one.name for one in some] == [one.name for one in data.read("train", folder, 5, seed=3)]
    assert [one.name for one in some] != [one.name for one in data.read("train", folder, 5, seed=4)]
    config = GraphormerConfig(**data.shape)
    inputs, _ = next(GraphBatches.of(some, config, CPU).by_length(10_000))
    assert Graphormer(config).eval()(**inputs).logits.shape == (5, 2)


def test_mnist_is_read_and_fits_its_model(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (folder / "mnist").exists():
        pytest.skip("the folder has no MNIST")
    pytest.importorskip("skimage")
    monkeypatch.setenv("CONSERVA_CACHE", str(tmp_path))
    data, told = graph_dataset("mnist"), []
    some = data.read("train+validation", folder, 12, progress=lambda done, total: told.append((done, total)))
    assert len({one.name for one in some}) == 12
    assert told == [(11, 11), (1, 1)]
    config = GraphormerConfig(**data.shape, num_labels=10)
    inputs, _ = next(GraphBatches.of(some, config, CPU).by_length(10_000))
    assert Graphormer(config).eval()(**inputs).logits.shape == (12, 10)
