"""Texts and graphs to train on: batches, ROC-AUC, recipes, and the datasets of graphs by name."""

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
from conserva.datasets import Labelled
from conserva.datasets.graph import Graph, batch, structure
from conserva.datasets.graph_catalogue import GRAPH_DATASETS, GraphDataset, graph_dataset
from conserva.models import graphormer
from conserva.models.graphormer import Graphormer, GraphormerConfig, trusted_ids
from conserva.paper.training import graph_samples
from conserva.paper.training.graph_samples import GraphSamples
from conserva.paper.training.graphs import GraphClassifier
from conserva.paper.training.measures import roc_auc
from conserva.paper.training.recipe import GraphRecipe, Recipe, TextRecipe
from conserva.paper.training.text_samples import TextSamples
from conserva.paper.training.trainer import Trainer

CPU = torch.device("cpu")


def model_of(data: GraphDataset = IDS, seed: int = 0, **changes: Any) -> Graphormer:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Graphormer(GraphormerConfig(**{**data.shape, **changes}))
        for parameter in model.parameters():  # far from where training starts, so that all of it matters
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


# Batches of texts.


def table(lengths: list[int]) -> TextSamples:
    """Texts of such lengths; the words of text 3 are 31, 32, 33, and so on."""
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int32)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.arange(1, length + 1) + 10 * row
    return TextSamples(ids, torch.tensor(lengths), torch.arange(len(lengths)))


LENGTHS = [3, 7, 1, 5, 5, 2, 8, 4, 6, 1, 3]


@pytest.mark.parametrize("how", ["shuffled", "by_length"])
def test_every_text_is_in_one_batch_with_its_mask(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextSamples, "stretch", 2)
    data, seen = table(LENGTHS), []
    found = data.shuffled(2, torch.Generator().manual_seed(0)) if how == "shuffled" else data.by_length(12)
    for inputs, labels in found:
        width = inputs["input_ids"].shape[1]
        assert width == max(LENGTHS[row] for row in labels.tolist())  # no column of pads alone
        assert len(labels) == 1 or len(labels) * width <= (12 if how == "by_length" else 2 * 8)
        assert inputs["input_ids"].dtype == torch.int64
        for row, ids, mask in zip(labels.tolist(), inputs["input_ids"], inputs["attention_mask"], strict=True):
            assert mask.tolist() == [True] * LENGTHS[row] + [False] * (width - LENGTHS[row])
            assert ids[mask].tolist() == [10 * row + word for word in range(1, LENGTHS[row] + 1)]
            assert (ids[~mask] == 0).all()
        seen.extend(labels.tolist())
    assert sorted(seen) == list(range(len(LENGTHS)))


def test_the_order_depends_on_the_generator_alone() -> None:
    data = table(LENGTHS)

    def order(generator: torch.Generator) -> list[list[int]]:
        return [labels.tolist() for _, labels in data.shuffled(2, generator)]

    torch.manual_seed(5)
    first, other = order(torch.Generator().manual_seed(0)), order(torch.Generator().manual_seed(1))
    torch.manual_seed(6)
    generator = torch.Generator().manual_seed(0)
    assert order(generator) == first != other
    assert order(generator) != first  # the next epoch has an order of its own


def test_texts_are_cut_and_padded() -> None:
    tokenizer = conserva.load().tokenizer
    data = Labelled(("a joy", "a long and a very long film about films", "dull"), (1, 0, 0), "here")
    found = TextSamples.of(data, tokenizer, 6, torch.device("cpu"))
    whole = [tokenizer(text)["input_ids"] for text in data.texts]
    assert len(found) == 3
    assert found.lengths.tolist() == [min(6, len(ids)) for ids in whole]
    assert found.ids.shape == (3, 6)
    assert found.ids[0].tolist() == whole[0] + [tokenizer.pad_token_id] * (6 - len(whole[0]))
    assert found.ids[1].tolist() == [*whole[1][:5], tokenizer.sep_token_id]
    assert found.labels.tolist() == [1, 0, 0]


# Batches of graphs.


@pytest.mark.parametrize("how", ["shuffled", "by_length"])
@pytest.mark.parametrize("data", [IDS, NUMBERS], ids=["ids", "numbers"])
def test_a_padded_batch_has_the_logits_of_its_graphs(
    how: str, data: GraphDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphSamples, "stretch", 2)
    monkeypatch.setattr(graph_samples, "AT_ONCE", 7)
    model, graphs = model_of(data), data.read("train")
    shown = [replace(graph, label=row) for row, graph in enumerate(graphs)]
    found = GraphSamples.of(shown, GraphormerConfig(**data.shape, num_labels=len(shown)), CPU)
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
    found = GraphSamples.of(made("train"), GraphormerConfig(**IDS.shape), CPU)
    assert found.paths is not None
    tables = (found.nodes, found.degrees, found.distances, found.paths)
    assert [table.element_size() for table in tables] == [2, 2, 1, 1]
    wide = GraphormerConfig(**{**IDS.shape, "node_values": 100_000, "edge_values": 1_000})
    large = Graph([[99_999], [1]], [[0, 1], [1, 0]], [999, 998], 0)
    inputs, _ = next(GraphSamples.of([large], wide, CPU).by_length(9))
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
        GraphSamples.of([Graph(**fine), Graph(**{**fine, **changes})], GraphormerConfig(**IDS.shape), CPU)  # type: ignore[arg-type]


def test_other_numbers_and_no_graphs_are_refused() -> None:
    config = GraphormerConfig(**NUMBERS.shape)
    for nodes in ([[0.5], [1.0]], [[1, 2], [3, 4]]):
        with pytest.raises(conserva.Error, match="a model with node_features=2 reads as many numbers"):
            GraphSamples.of([Graph(nodes, [[0, 1], [1, 0]], label=0)], config, CPU)  # type: ignore[arg-type]
    with pytest.raises(conserva.Error, match="graphs is empty"):
        GraphSamples.of([], config, CPU)


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
    data = {name: GraphSamples.of(made(name), GraphormerConfig(**IDS.shape), CPU) for name in ("train", "validation")}
    trainer = Trainer(
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
    ("kind", "name", "value"),
    [
        (kind, name, 0)
        for kind in (TextRecipe, GraphRecipe)
        for name in ("learning_rate", "epochs", "batch_size", "clip")
    ]
    + [(kind, "weight_decay", -0.1) for kind in (TextRecipe, GraphRecipe)]
    + [(kind, "learning_rate", float("nan")) for kind in (TextRecipe, GraphRecipe)]
    + [(TextRecipe, "patience", 0), (TextRecipe, "tokens", 0), (TextRecipe, "epochs", -1), (TextRecipe, "tokens", 2)]
    + [(GraphRecipe, "warm_up", 1.0), (GraphRecipe, "average", 1.0), (GraphRecipe, "average", -0.1)]
    + [(GraphRecipe, "schedule", "square"), (GraphRecipe, "keep", "first")],
)
def test_a_recipe_of_nonsense_is_refused(kind: type[Recipe], name: str, value: Any) -> None:
    with pytest.raises(conserva.Error, match=f"{name}={value!r}"):
        kind(**{name: value})


def test_the_best_of_nothing_is_refused() -> None:
    with pytest.raises(conserva.Error, match="keep='best' needs the validation split"):
        GraphRecipe(hold_out=False)
    bace, mnist = (GraphClassifier(name).recipe() for name in ("bace", "mnist"))
    assert (bace.epochs, mnist.epochs) == (1000, 10)
    assert (mnist.hold_out, mnist.keep) == (False, "last")


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
    inputs, _ = next(GraphSamples.of(some, config, CPU).by_length(10_000))
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
    inputs, _ = next(GraphSamples.of(some, config, CPU).by_length(10_000))
    assert Graphormer(config).eval()(**inputs).logits.shape == (12, 10)
