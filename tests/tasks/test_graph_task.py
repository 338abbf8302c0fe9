"""Graphs as a task: encoding, batches, the three maskings, explanations and evaluations, bad input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import conserva
from conserva.datasets.graph import Graph, batch
from conserva.datasets.molecules import EDGE_VALUES, NODE_VALUES, molecule
from conserva.datasets.superpixels import superpixels
from conserva.evaluation.stream import Stream
from conserva.models.graphormer import Graphormer, GraphormerConfig
from conserva.tasks.graph import MASKS
from graph_replicas import replica
from tiny import shake

SMILES = ("CC(C)Cc1ccc(cc1)C(C)C(=O)O", "C", "CCO.[Na+]", "c1ccccc1Br", "CCN")
EXACT = {"rtol": 1e-10, "atol": 1e-10}

pytestmark = pytest.mark.usefixtures("few_resamples")


def drawn(seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    image = np.zeros((28, 28), np.uint8)
    row, column = generator.integers(4, 12, 2)
    image[row : row + 12, column : column + 4] = generator.integers(90, 255, (12, 4))
    return image


def molecules_task() -> conserva.Graph:
    torch.manual_seed(0)
    shape = {"node_values": NODE_VALUES, "edge_values": EDGE_VALUES, "hidden_size": 16, "num_attention_heads": 4}
    model = Graphormer(GraphormerConfig(**shape, ffn_size=16, num_labels=2, id2label={0: "inactive", 1: "active"}))
    return conserva.Graph(shake(model).double().eval(), "molecules")


def digits_task() -> conserva.Graph:
    torch.manual_seed(1)
    shape = {"node_features": 3, "hidden_size": 16, "num_attention_heads": 4, "ffn_size": 16, "max_degree": 31}
    return conserva.Graph(shake(Graphormer(GraphormerConfig(**shape, num_labels=10))).double().eval(), "digits")


TASKS: dict[str, tuple[Callable[[], conserva.Graph], list]] = {
    "molecules": (molecules_task, list(SMILES)),
    "digits": (digits_task, [drawn(seed) for seed in range(3)]),
}
over_tasks = pytest.mark.parametrize("kind", TASKS)


def made(kind: str) -> tuple[conserva.Graph, list]:
    task, inputs = TASKS[kind]
    return task(), inputs


# Encoding and batches.


def test_a_molecule_has_its_atoms_and_a_virtual_node() -> None:
    task, _ = made("molecules")
    found = task.encode("CCN")
    assert found.tokens == ("virtual node", "C", "C", "N")
    assert found.special == found.fixed == (True, False, False, False)
    assert found.words == (None, 0, 1, 2)
    assert found.picture == {"kind": "molecule", "smiles": "CCN"}
    assert found.controls() == {}


def test_an_image_has_its_superpixels_and_their_intensity_as_a_control() -> None:
    task, (image, *_) = made("digits")
    found = task.encode(image)
    assert found.tokens[:2] == ("virtual node", "superpixel 0")
    assert found.picture["image"] == image.tolist()
    regions = np.array(found.picture["regions"])
    ((name, order),) = found.controls().items()
    assert (name, order[0]) == ("intensity", 0)
    for node in range(len(found) - 1):
        assert order[1 + node] == pytest.approx(image[regions == node].mean() / 255, abs=1e-6)


@over_tasks
def test_a_batch_gives_the_logits_of_each_graph(kind: str) -> None:
    task, inputs = made(kind)
    encoded = [task.encode(one) for one in inputs]
    together = task.model(**task.batch(encoded)).logits
    for row, one in enumerate(encoded):
        plain = batch([one.graph], [one.structure])
        plain["nodes"] = plain["nodes"].double() if plain["nodes"].is_floating_point() else plain["nodes"]
        torch.testing.assert_close(together[row], task.model(**plain).logits[0], **EXACT)


# Nodes that are taken away.


@pytest.mark.parametrize("mask", MASKS)
@over_tasks
def test_masked_graphs_one_by_one(kind: str, mask: str) -> None:
    task, inputs = made(kind)
    generator = np.random.default_rng(0)
    encoded = [task.encode(one) for one in inputs]
    kept = []
    for one in encoded:
        rows = generator.random((6, len(one))) < np.array([[0.0], [0.2], [0.5], [0.8], [1.0], [0.5]])
        rows[:, 0] = True
        kept.append(rows)
    parts = [task.masked(one, rows, mask) for one, rows in zip(encoded, kept, strict=True)]
    for given in (parts, *([part] for part in parts)):  # several graphs in a batch, and one graph with all of its rows
        with torch.inference_mode():
            logits = task.model(**task.stack(given)).logits
        expected = [replica(task, part.encoded.graph, row, mask) for part in given for row in part.kept]
        torch.testing.assert_close(logits, torch.stack(expected), **EXACT)
    streamed = Stream(task, 100).logits(parts)
    for part, found in zip(parts, streamed, strict=True):
        for row, logits in zip(part.kept, found, strict=True):
            np.testing.assert_allclose(
                logits, replica(task, part.encoded.graph, row, mask).numpy(force=True), atol=1e-5
            )


def test_rows_are_evaluated_once_for_each_graph() -> None:
    task, _ = made("molecules")
    same = [task.encode("CCN"), task.encode("CCN"), task.encode("CCO")]
    rows = np.array([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 0, 1]], dtype=bool)
    stream = Stream(task)
    found = stream.logits([task.masked(one, rows, "token") for one in same])
    assert (stream.asked, stream.evaluated) == (9, 6)
    np.testing.assert_array_equal(found[0][0], found[0][2])
    assert not np.allclose(found[0], found[2])


# Explanations.


@pytest.mark.parametrize("method", list(conserva.methods()))
@over_tasks
def test_every_method_explains_graphs_alone_and_together(kind: str, method: str) -> None:
    task, inputs = made(kind)
    together = conserva.explain(task, inputs, method=method)
    for one, found in zip(inputs, together, strict=True):
        alone = conserva.explain(task, one, method=method)
        np.testing.assert_allclose(found.scores, alone.scores, atol=1e-9)
        assert found.features[0] == "virtual node"
        assert (len(found.scores), found.target) == (len(found.features), alone.target)
        assert np.isfinite(found.scores).all()


@over_tasks
def test_the_books_of_exact_close_at_nodes_virtual_node_and_biases(kind: str) -> None:
    task, inputs = made(kind)
    for one in conserva.explain(task, inputs, method="exact"):
        assert one.ledger is not None
        assert one.output == pytest.approx(math.fsum(one.scores) + one.ledger.biases, abs=1e-10)
        assert abs(one.ledger.gap) < 1e-10
        assert one.ledger.positions == 0
        visible = one.visible()
        assert len(visible.scores) == len(one.scores) - 1
        assert math.fsum(visible.scores) + one.scores[0] == pytest.approx(math.fsum(one.scores), abs=1e-12)


def test_explanations_of_graphs_survive_a_file(tmp_path) -> None:
    task, inputs = made("digits")
    found = conserva.explain(task, inputs[0], target=3)
    assert conserva.Explanation.load(found.save(tmp_path / "digit.json")) == found
    assert found.target == "LABEL_3"


# Evaluations.


@pytest.mark.parametrize("mask", MASKS)
@over_tasks
def test_evaluate_names_the_mask_and_never_takes_the_virtual_node(kind: str, mask: str) -> None:
    task, inputs = made(kind)
    data = [(one, i % 2) for i, one in enumerate(inputs)]
    found = conserva.evaluate(task, data, ["gi", "ah+ln"], protocol="paper", mask=mask, steps="each")
    assert found.protocol["mask"] == mask
    assert found.protocol["steps"] is None
    names = [one.method for one in found.methods]
    assert names == ["gi", "ah+ln", "leave-one-out", *(["intensity"] if kind == "digits" else [])]
    assert [one.reference for one in found.methods] == [False, False, *[True] * (len(names) - 2)]
    # One feature at a time: the first point has the virtual node alone, the last one the whole graph.
    first, last = ([], [])
    for given, label in data:
        one = task.encode(given)
        count = len(one) - 1
        for points, kept in ((first, np.zeros(count, bool)), (last, np.ones(count, bool))):
            points.append(replica(task, one.graph, kept, mask).softmax(-1)[label].item())
    for method in found.methods:
        curve = method.curves["activation"]
        assert curve.mean[0] == pytest.approx(np.mean(first), abs=1e-5)
        assert curve.mean[-1] == pytest.approx(np.mean(last), abs=1e-5)


def test_areas_of_graphs_with_different_sizes_by_hand() -> None:
    task, _ = made("molecules")
    data = [("CCO", 0), ("CCCN", 1)]
    found = conserva.evaluate(task, data, ["exact"], protocol="paper", mask="token", steps="each", reference=False)
    areas = []
    for smiles, label in data:
        one = conserva.explain(task, smiles, label, method="exact").visible()
        order = np.argsort(-np.array(one.scores), kind="stable")
        points = []
        for count in range(len(order) + 1):
            kept = np.zeros(len(order), bool)
            kept[order[:count]] = True
            points.append(replica(task, molecule(smiles), kept, "token").softmax(-1)[label].item())
        areas.append(sum(a + b for a, b in itertools.pairwise(points)) / 2 / len(order))
    assert found.methods[0].auac.mean == pytest.approx(np.mean(areas), abs=1e-6)


def test_evaluate_reads_labels_of_graphs_and_columns_of_smiles(tmp_path) -> None:
    task, _ = made("molecules")
    graphs = [molecule("CCO", 1), molecule("CCN", 0)]
    found = conserva.evaluate(task, graphs, ["gi"], protocol="paper", reference=False)
    path = tmp_path / "molecules.csv"
    path.write_text("smiles,label\nCCO,active\nCCN,inactive\n", encoding="utf-8")
    same = conserva.evaluate(task, str(path), ["gi"], protocol="paper", reference=False)
    assert found.methods == same.methods
    assert found.protocol["mask"] == "token"
    unlabelled = conserva.evaluate(task, ["CCO", "CCN"], ["gi"], reference=False)
    assert unlabelled.accuracy is None


def test_audit_takes_graphs() -> None:
    task, inputs = made("molecules")
    found = conserva.audit(task, inputs[:2], 1, rules="exact")
    assert abs(found.ledger.gap) < 1e-10
    assert found.samples == 2


# Bad input.


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        ("molecules", "C(C", ["'C(C'", "extra open parentheses"]),
        ("molecules", "C1CC", ["'C1CC'", "unclosed ring"]),
        ("molecules", "F(F)F", ["'F(F)F'", "valence"]),
        ("molecules", "", ["no atom"]),
        ("molecules", "C" * 129, ["129 nodes", "takes 128", "max_nodes"]),
        ("molecules", np.zeros((28, 28), np.uint8), ["not a graph", "a SMILES"]),
        ("molecules", 7, ["7", "a SMILES"]),
        ("digits", "CCO", ["'CCO'", "28 x 28 image"]),
        ("digits", np.zeros((27, 28), np.uint8), ["(27, 28)"]),
        ("digits", molecule("CCO"), ["'CCO'", "ids", "3 numbers"]),
        ("molecules", superpixels(np.zeros((28, 28), np.uint8)), ["3 numbers", f"ids below {NODE_VALUES}"]),
        ("molecules", Graph(np.array([[1], [2]]), np.array([[0, 1], [1, 0]]), name="pair"), ["'pair'", "edge_ids"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_graph_for_the_model_is_refused(kind: str, given: object, says: list[str]) -> None:
    task, _ = made(kind)
    with pytest.raises(conserva.Error) as caught:
        conserva.explain(task, [given])
    assert all(one in str(caught.value) for one in says), str(caught.value)


def test_wrong_maskings_steps_and_models_are_refused() -> None:
    task, inputs = made("molecules")
    with pytest.raises(conserva.Error, match="mask='zero' is unknown: choose one of token, induced, blank"):
        conserva.evaluate(task, inputs, ["gi"], mask="zero")
    for steps in (0, -1, "all"):
        with pytest.raises(conserva.Error, match="steps="):
            conserva.evaluate(task, inputs, ["gi"], steps=steps)
    with pytest.raises(conserva.Error, match="Linear is not conserva"):
        conserva.Graph(torch.nn.Linear(2, 2))
    for data in ([], 3, [1, 2]):
        with pytest.raises(conserva.Error, match="data"):
            conserva.evaluate(task, data, ["gi"])


def test_what_a_task_does_not_take_is_named() -> None:
    with pytest.raises(conserva.Error, match=r"is neither a single text that sentiment accepts nor a list of them"):
        conserva.explain(conserva.load(), molecule("CCO"))
    with pytest.raises(conserva.Error, match=r"inputs=7 is neither a single graph that molecules accepts"):
        conserva.explain(made("molecules")[0], 7)
    with pytest.raises(conserva.Error, match="²"):  # a digit, but no number
        conserva.explain(made("molecules")[0], "CCO", target="²")


def test_weights_that_are_not_finite_are_named() -> None:
    task, inputs = made("molecules")
    task.model.classifier.weight.data[0, 0] = math.nan
    with pytest.raises(conserva.Error, match="nan"):
        conserva.explain(task, inputs[0])
