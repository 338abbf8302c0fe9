"""The bundled models of molecules and digits: what theory says of any Graphormer, on weights that were trained."""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import re
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

import conserva
from conserva.datasets.drawn import drawn_digit
from conserva.datasets.graph import Graph
from conserva.datasets.molecules import bace
from conserva.datasets.superpixels import digits
from conserva.models.graphormer import Graphormer, GraphormerConfig
from graph_replicas import replica

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "src" / "conserva" / "models"
DATA = os.environ.get("CONSERVA_DATA")
EXACT = 1e-10

SMILES = (
    "C",  # one atom
    "CCO.[Na+]",  # two parts
    "C[N+](C)(C)CC([O-])=O",  # charges
    "N[C@@H](C)C(=O)O",  # chirality
    "S(=O)(=O)(C(CCC)CCC)C[C@@H](NC(OCc1ccccc1)=O)C(=O)N[C@H]([C@H](O)C[NH2+]Cc1cc(OC)ccc1)Cc1ccccc1",  # of BACE
)
INPUTS: dict[str, list] = {"bace": list(SMILES), "mnist": [drawn_digit(digit) for digit in range(10)]}
CLASSES = {"bace": 2, "mnist": 10}
over_models = pytest.mark.parametrize("name", INPUTS)
over_classes = pytest.mark.parametrize(
    ("name", "target"), [(name, target) for name, count in CLASSES.items() for target in range(count)]
)


@functools.cache
def loaded(name: str) -> conserva.Graph:
    task = conserva.load(name)
    assert isinstance(task, conserva.Graph)
    return task


@functools.cache
def precise(name: str) -> conserva.Graph:
    """Return the task in float64."""
    return conserva.Graph(copy.deepcopy(loaded(name).model).double(), name)


@functools.cache
def unbiased(name: str) -> conserva.Graph:
    """Return the task in float64 without the biases of layers and norms; those on attention stay."""
    task = conserva.Graph(copy.deepcopy(precise(name).model), name)
    for part in task.model.modules():
        if isinstance(part, (torch.nn.Linear, torch.nn.LayerNorm)) and part is not task.model.tokens.features:
            part.bias.data.zero_()
    return task


def logits_alone(task: conserva.Graph, given: object) -> Tensor:
    one = task.encode(given)  # type: ignore[arg-type]
    return replica(task, one.graph, np.ones(len(one.graph), bool), "token").detach()


# The books.


@over_classes
def test_nodes_virtual_node_and_biases_add_up_to_the_logit(name: str, target: int) -> None:
    task, inputs = precise(name), INPUTS[name]
    for given, one in zip(inputs, conserva.explain(task, inputs, target, method="exact"), strict=True):
        assert one.features[0] == "virtual node"
        assert one.ledger is not None
        virtual, *nodes = one.scores
        logit = logits_alone(task, given)[target].item()
        assert math.fsum(nodes) + virtual + one.ledger.biases == pytest.approx(logit, abs=EXACT)
        assert abs(one.ledger.gap) < EXACT


@over_classes
def test_without_biases_scores_alone_add_up_to_the_logit(name: str, target: int) -> None:
    task, inputs = unbiased(name), INPUTS[name]
    for given, one in zip(inputs, conserva.explain(task, inputs, target, method="exact"), strict=True):
        assert math.fsum(one.scores) == pytest.approx(logits_alone(task, given)[target].item(), abs=EXACT)


@over_classes
def test_with_the_plain_gradient_of_activations_a_gap_is_left(name: str, target: int) -> None:
    for one in conserva.explain(precise(name), INPUTS[name], target, method="ah+ln"):
        assert one.ledger is not None
        assert abs(one.ledger.gap) > 1e-4
        assert one.output == pytest.approx(math.fsum(one.scores) + one.ledger.biases + one.ledger.gap, abs=EXACT)


@over_models
@pytest.mark.parametrize("method", conserva.methods())
def test_every_method_scores_the_virtual_node_and_every_node(name: str, method: str) -> None:
    task, inputs = loaded(name), INPUTS[name][1:3]
    for given, one in zip(inputs, conserva.explain(task, inputs, method=method), strict=True):
        encoded = task.encode(given)
        assert one.features == ("virtual node", *encoded.tokens[1:])
        assert one.special == (True, *[False] * len(encoded.graph))
        assert len(one.scores) == 1 + len(encoded.graph)
        assert np.isfinite(one.scores).all()
        assert np.ptp(one.scores[1:]) > 0


# Nodes that are taken away.


@over_models
def test_a_token_mask_deletes_nodes(name: str) -> None:
    task, random = precise(name), np.random.default_rng(0)
    for given in INPUTS[name]:
        one = task.encode(given)
        count = len(one.graph)
        rows = np.concatenate([~np.eye(count, dtype=bool)[:8], random.random((4, count)) < 0.5])
        rows = np.pad(rows[rows.any(1) & ~rows.all(1)], ((0, 0), (1, 0)), constant_values=True)
        if count == 1:  # without its only atom a graph is empty, of which the next test speaks
            continue
        with torch.inference_mode():
            found = task.model(**task.stack([task.masked(one, rows, "token")])).logits
        expected = torch.stack([replica(task, one.graph, row[1:], "token") for row in rows])
        torch.testing.assert_close(found, expected, rtol=0, atol=EXACT)
        assert (found - logits_alone(task, given)).abs().amax(1).min() > 1e-6


@over_models
def test_the_empty_graph_is_the_virtual_node_looking_at_itself(name: str) -> None:
    task = precise(name)
    model = task.model
    x = model.tokens.virtual.weight[0]
    for block in model.blocks:
        x = x + block.output(block.value(block.attention_norm(x)))
        x = x + block.down(torch.nn.functional.gelu(block.up(block.ffn_norm(x))))
    expected = model.classifier(model.norm(x))
    assert expected.isfinite().all()
    for given in INPUTS[name]:
        one = task.encode(given)
        nothing = np.eye(1, len(one), dtype=bool)
        found = model(**task.stack([task.masked(one, nothing, "token")])).logits[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=EXACT)


# Attention flow.


def bias_by_loops(weights: dict[str, Tensor], inputs: dict[str, Tensor], heads: int) -> Tensor:
    """What the graph adds to scores: heads x places x places."""
    distances, paths = inputs["distances"][0], inputs.get("paths")
    places = 1 + len(distances)
    found = weights["bias.virtual.weight"][0][:, None, None].repeat(1, places, places)
    for i in range(places - 1):
        for j in range(places - 1):
            found[:, 1 + i, 1 + j] = weights["bias.distances.weight"][distances[i, j]]
            edges = [] if paths is None else [int(edge) for edge in paths[0, i, j] if edge]
            for hop, edge in enumerate(edges):
                mixing = weights["bias.mixing.weight"][hop].reshape(heads, heads)
                found[:, 1 + i, 1 + j] += weights["bias.edges.weight"][edge] @ mixing / len(edges)
    return found


def maps_by_hand(task: conserva.Graph, given: object) -> list[Tensor]:
    """Return the mean map of each of two layers, from the weights alone."""
    inputs = task.batch([task.encode(given)])  # type: ignore[arg-type]
    w, heads = dict(task.model.state_dict()), task.model.config.num_attention_heads
    x, bias, maps = inputs["inputs_embeds"][0], bias_by_loops(w, inputs, heads), []

    def linear(x: Tensor, layer: str) -> Tensor:
        return x @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]

    def normed(x: Tensor, norm: str) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        return centred / (centred.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * w[f"{norm}.weight"] + w[f"{norm}.bias"]

    for layer in ("blocks.0", "blocks.1"):
        seen = normed(x, f"{layer}.attention_norm")
        q, k, v = (linear(seen, f"{layer}.{part}").chunk(heads, 1) for part in ("query", "key", "value"))
        each = [(q[h] @ k[h].T / math.sqrt(q[h].shape[1]) + bias[h]).exp() for h in range(heads)]
        each = [one / one.sum(1, keepdim=True) for one in each]
        maps.append(torch.stack(each).mean(0))
        x = x + linear(torch.cat([each[h] @ v[h] for h in range(heads)], 1), f"{layer}.output")
        up = linear(normed(x, f"{layer}.ffn_norm"), f"{layer}.up")
        x = x + linear(up * (1 + torch.erf(up / math.sqrt(2))) / 2, f"{layer}.down")
    logits = linear(normed(x[:1], "norm"), "classifier")[0]
    torch.testing.assert_close(logits, logits_alone(task, given), rtol=0, atol=EXACT)
    return maps


@pytest.mark.parametrize(
    ("name", "number", "searched"),
    [("bace", 0, 2), ("bace", 1, 5), ("bace", 2, 9), ("bace", 3, 7), ("mnist", 4, 3), ("mnist", 7, 3)],
)
def test_attention_flow_by_its_closed_form_and_by_a_search(name: str, number: int, searched: int) -> None:
    task, given = precise(name), INPUTS[name][number]
    found = conserva.explain(task, given, method="a-flow").scores
    first, second = ((one + torch.eye(len(one))) / 2 for one in maps_by_hand(task, given))
    places = len(first)
    expected = [sum(min(second[0, j], first[j, i]).item() for j in range(places)) for i in range(places)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=EXACT)
    network = nx.DiGraph()
    for j in range(places):
        network.add_edge("top", ("middle", j), capacity=second[0, j].item())
        for i in range(places):
            network.add_edge(("middle", j), ("bottom", i), capacity=first[j, i].item())
    for i in range(places)[-searched:]:
        assert nx.maximum_flow_value(network, "top", ("bottom", i)) == pytest.approx(found[i], abs=EXACT)


# What comes with the package.


def test_both_models_are_small() -> None:
    files = [path for name in INPUTS for path in (MODELS / name).iterdir()]
    assert {path.name for path in files} == {"README.md", "config.json", "model.safetensors"}
    assert sum(path.stat().st_size for path in files) < 3_000_000


def test_the_package_has_their_files() -> None:
    ((listed,),) = [
        re.findall(r"^conserva = \[(.*?)\]$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    ]
    patterns = re.findall(r'"(.*?)"', listed)
    packed = {path for pattern in patterns for path in (ROOT / "src" / "conserva").glob(pattern)}
    assert {path for name in INPUTS for path in (MODELS / name).iterdir()} <= packed


@over_models
def test_a_name_is_the_bundled_model_beside_a_folder_of_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "data.csv.gz").touch()
    monkeypatch.chdir(tmp_path)
    found = conserva.load(name)
    assert found.fingerprint == loaded(name).fingerprint
    assert list(found.labels) == (["inactive", "active"] if name == "bace" else [str(digit) for digit in range(10)])
    own = Graphormer(GraphormerConfig(node_features=3, hidden_size=8, num_attention_heads=2, ffn_size=8, num_labels=4))
    own.save_pretrained(folder)  # a model of that name is the user's own
    assert conserva.load(name).model.config.num_labels == 4


def test_bundled_is_the_molecules_model_of_the_results() -> None:
    kept = json.loads((ROOT / "docs" / "results" / "graphs" / "bace.json").read_text(encoding="utf-8"))["trained"][0]
    assert (kept["seed"], kept["weights"]) == (0, loaded("bace").fingerprint)


# What they know.


def scores_of(task: conserva.Graph, graphs: list[Graph]) -> Tensor:
    with torch.inference_mode():
        parts = [graphs[start : start + 100] for start in range(0, len(graphs), 100)]
        return torch.cat([task.model(**task.batch([task.encode(one) for one in part])).logits for part in parts])


@pytest.mark.skipif(not DATA, reason="CONSERVA_DATA names no folder of datasets")
def test_accuracy_on_published_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSERVA_CACHE", str(tmp_path))
    graphs = digits("test", 500, 0, DATA)
    found = scores_of(loaded("mnist"), graphs).argmax(1)
    assert np.mean([int(one) == graph.label for one, graph in zip(found, graphs, strict=True)]) >= 0.97


@pytest.mark.skipif(not DATA, reason="CONSERVA_DATA names no folder of datasets")
def test_ranking_of_published_molecules() -> None:
    graphs = bace("test", DATA)
    found = scores_of(loaded("bace"), graphs)
    margins = (found[:, 1] - found[:, 0]).tolist()
    active, inactive = ([m for m, one in zip(margins, graphs, strict=True) if one.label == k] for k in (1, 0))
    pairs = [(a > b) + (a == b) / 2 for a in active for b in inactive]
    kept = json.loads((ROOT / "docs" / "results" / "graphs" / "bace.json").read_text(encoding="utf-8"))["trained"][0]
    assert np.mean(pairs) == pytest.approx(kept["test_roc_auc"], abs=1e-3)
