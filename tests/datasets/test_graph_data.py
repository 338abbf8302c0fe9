"""What evaluations of graphs are run on: mixed graphs, labels of all kinds, datasets by name."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import conserva
from conserva.datasets import graph_catalogue, mnist
from conserva.datasets import superpixels as module
from conserva.datasets.drawn import drawn_digit
from conserva.datasets.graph import Graph, structure
from conserva.datasets.molecules import molecule
from conserva.datasets.superpixels import superpixels

DATA = os.environ.get("CONSERVA_DATA")


@pytest.fixture(scope="module")
def digits() -> conserva.Graph:
    return conserva.load("mnist")


@pytest.fixture(scope="module")
def molecules() -> conserva.Graph:
    return conserva.load("bace")


def seven(label: int | None = None) -> Graph:
    return superpixels(drawn_digit(7), label)


def plain(label: int | None = None) -> Graph:
    """A graph of the same shape that is no picture: all of its numbers are features."""
    return replace(seven(label), picture=None)


def test_what_is_blank_does_not_depend_on_the_batch(digits: conserva.Graph) -> None:
    image, other = digits.encode(seven()), digits.encode(plain())
    kept = np.arange(len(image)) % 3 == 0
    kept[0] = True
    parts = [digits.masked(one, kept[None], "blank") for one in (image, other)]
    with torch.inference_mode():
        together = digits.model(**digits.stack(parts)).logits
        alone = torch.cat([digits.model(**digits.stack([part])).logits for part in parts])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)
    assert (alone[0] - alone[1]).abs().max() > 0.1  # places are kept in the picture alone


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_control_that_not_every_graph_has_is_left_out(digits: conserva.Graph, order: tuple[int, int]) -> None:
    data = [[seven(7), plain(7)][i] for i in order]
    found = conserva.evaluate(digits, data, ["gi"], steps=2)
    assert [one.method for one in found.methods] == ["gi", "leave-one-out"]
    found = conserva.evaluate(digits, [seven(7)], ["gi"], steps=2)
    assert [one.method for one in found.methods] == ["gi", "leave-one-out", "intensity"]


def test_labels_of_all_kinds(molecules: conserva.Graph) -> None:
    graph = molecule("CCO", np.int64(1))
    assert (graph.label, type(graph.label)) == (1, int)
    for label in (np.int64(1), 1, "active", "ACTIVE"):
        found = conserva.evaluate(molecules, [("CCO", label)], ["gi"], protocol="paper", steps=2, reference=False)
        assert found.accuracy in (0.0, 1.0)
    for label, says in ((None, "None"), (1.5, "1.5"), (7, "out of range"), ("other", "other")):
        with pytest.raises(conserva.Error, match=says):
            conserva.evaluate(molecules, [("CCO", label)], ["gi"])
    with pytest.raises(conserva.Error, match="1 of 2 graphs have no label"):
        conserva.evaluate(molecules, [molecule("CCO", 1), molecule("CCN")], ["gi"])


def test_a_dataset_by_its_name(molecules: conserva.Graph, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def read(split: str, folder: object, count: int | None, seed: int, progress: object) -> list[Graph]:
        assert (split, count) == ("test", None)
        return [molecule("CCO", 0), molecule("CCN", 1)]

    bace = replace(graph_catalogue.GRAPH_DATASETS["bace"], reader=read)
    monkeypatch.setitem(graph_catalogue.GRAPH_DATASETS, "bace", bace)
    found = conserva.evaluate(molecules, "bace", ["gi"], protocol="paper", steps=2)
    assert (found.samples, found.data) == (2, "bace (test)")
    from conserva.cli import main

    assert main(["evaluate", "--model", "bace", "--data", "bace", "--methods", "gi", "--steps", "2", "--json"]) == 0
    assert '"bace (test)"' in capsys.readouterr().out


def test_numbers_that_make_no_sense(molecules: conserva.Graph) -> None:
    with pytest.raises(conserva.Error, match="batch_tokens=0"):
        conserva.explain(molecules, ["CCO"], batch_tokens=0)
    with pytest.raises(conserva.Error, match="batch_tokens=0"):
        conserva.evaluate(molecules, ["CCO"], ["gi"], batch_tokens=0)
    with pytest.raises(conserva.Error, match="steps=True"):
        conserva.evaluate(molecules, ["CCO"], ["gi"], steps=True)
    with pytest.raises(conserva.Error, match="contains no graphs") as caught:
        conserva.evaluate(molecules, molecule("C" * 100), ["gi"])
    assert len(str(caught.value)) < 200


# MNIST as published.


def test_published_digits() -> None:
    if not DATA:
        pytest.skip("no folder of datasets: set CONSERVA_DATA")
    read = module.digits("test", 150, 0, DATA)
    sizes = Counter(len(graph) for graph in read)
    assert 70 <= min(sizes) <= max(sizes) == 75
    assert sizes[75] > 140
    assert {graph.label for graph in read} == set(range(10))
    assert not any((structure(graph).distances == 20).any() for graph in read)
    rows = {split: set(mnist._rows(split, 60_000).tolist()) for split in ("train", "validation")}
    assert {split: len(its) for split, its in rows.items()} == {"train": 55_000, "validation": 5_000}
    assert not rows["train"] & rows["validation"]
