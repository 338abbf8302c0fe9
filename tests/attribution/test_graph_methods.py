"""Every method on a Graphormer, whose last block computes the virtual node's row alone."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput

import conserva
from attention_replicas import REPLICAS, Maps, flows_from
from conserva.attribution.attention_pass import attention_pass
from conserva.attribution.registry import find, methods
from conserva.datasets.graph import Graph, batch, structure
from conserva.models.graphormer import Graphormer, GraphormerConfig
from tiny import shake

CLOSE = {"rtol": 1e-9, "atol": 1e-10}
FAR, HOPS = 3, 2
EDGES = [
    [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 3)],
    [(0, 1), (1, 2), (3, 4), (4, 5), (3, 5)],  # in two parts
    [],  # a node alone
    [(0, 1), (1, 2)],
]
SIZES = [5, 6, 1, 3]
TARGETS = [0, 1, 2, 0]
OPTIONS = ("chefer:normalise=yes", "chefer:start=1")
ALL_ROWS = ("a-last:rows=all", "rollout:rows=all", "a-flow:rows=all", "gae:variant=rollout")
OWN_DROPPED = ("gae", "chefer", "partial-lrp")
"""Methods that say nothing about the place that is read: it holds itself."""

VARIANTS = {
    f"{layers} layers, {norm}, {kind}": {"num_hidden_layers": layers, "pre_norm": norm == "pre", **settings}
    for layers, norm, (kind, settings) in itertools.product(
        (2, 3),
        ("pre", "post"),
        {"categories": {"node_values": 9, "edge_values": 5}, "numbers": {"node_features": 3}}.items(),
    )
}
SINGLE = {"1 layer": {"num_hidden_layers": 1, "node_values": 9, "edge_values": 5}}
over_variants = pytest.mark.parametrize("variant", VARIANTS)
over_methods = pytest.mark.parametrize("method", [*methods(), *OPTIONS])


class Whole(Graphormer):
    """The same classifier, whose last block computes every row."""

    def forward(  # type: ignore[override]
        self, inputs_embeds: Tensor, distances: Tensor, attention_mask: Tensor, paths: Tensor | None = None
    ) -> SequenceClassifierOutput:
        bias = self.bias(distances, paths).masked_fill(~attention_mask[:, None, None, :], -math.inf)
        x = inputs_embeds
        for block in self.blocks:
            x = block(x, bias)
        return SequenceClassifierOutput(logits=self.classifier(self.norm(x[:, 0])))


@functools.cache
def built(variant: str, kind: type[Graphormer] = Graphormer) -> Graphormer:
    settings = {"hidden_size": 12, "num_attention_heads": 3, "ffn_size": 10, "max_degree": 2, "num_labels": 3}
    torch.manual_seed(0)
    config = GraphormerConfig(**settings, max_distance=FAR, max_hops=HOPS, **{**VARIANTS, **SINGLE}[variant])
    return shake(kind(config), 0.4).double()  # type: ignore[return-value]


def graph(row: int, numbers: bool) -> Graph:
    random = np.random.default_rng(row)
    edges = np.array(EDGES[row] + [(b, a) for a, b in EDGES[row]], dtype=int).reshape(-1, 2).T
    nodes = random.normal(size=(SIZES[row], 3)) if numbers else random.integers(1, 9, (SIZES[row], 3))
    ids = np.tile(random.integers(1, 5, len(EDGES[row])), 2)
    return Graph(nodes=nodes, edges=edges, edge_ids=None if numbers else ids)


def inputs_of(variant: str, rows: list[int], kept: list[list[int]] | None = None) -> dict[str, Tensor]:
    """Return graphs as tokens, the arrays of their structure, and the mask."""
    model, graphs = built(variant), [graph(row, "numbers" in variant) for row in rows]
    given = batch(graphs, [structure(one, FAR, HOPS) for one in graphs], kept)
    nodes = given.pop("nodes")
    with torch.no_grad():
        tokens = model.tokens(nodes.double() if nodes.is_floating_point() else nodes, given.pop("degrees"))
    return {"inputs_embeds": tokens, **given}


def scores_of(method: str, model: Graphormer, inputs: dict[str, Tensor], targets: list[int]) -> Tensor:
    found = find(method).apply(model, inputs, targets)
    assert list(found.scores) == ["inputs_embeds"]
    return found.scores["inputs_embeds"]


def maps_by_hand(model: Graphormer, inputs: dict[str, Tensor], target: int) -> Maps:
    """Return the square map of every block for one graph without pads, and the target's gradient for it."""
    x, heads = inputs["inputs_embeds"][0], model.config.num_attention_heads
    bias = model.bias(inputs["distances"], inputs.get("paths"))[0]
    maps = []
    for block in model.blocks:
        seen = block.attention_norm(x) if model.config.pre_norm else x
        q, k, v = (layer(seen).chunk(heads, -1) for layer in (block.query, block.key, block.value))
        each = [(q[h] @ k[h].T / math.sqrt(q[h].shape[1]) + bias[h]).softmax(-1) for h in range(heads)]
        maps.append(torch.stack(each))
        x = x + block.output(torch.cat([maps[-1][h] @ v[h] for h in range(heads)], -1))
        x = x if model.config.pre_norm else block.attention_norm(x)
        hidden = torch.nn.functional.gelu(block.up(block.ffn_norm(x) if model.config.pre_norm else x))
        x = x + block.down(hidden)
        x = x if model.config.pre_norm else block.ffn_norm(x)
    number = model.classifier(model.norm(x[0]))[target]
    torch.testing.assert_close(number, model(**inputs).logits[0, target], **CLOSE)
    grads = torch.autograd.grad(number, maps)
    return [(one.detach(), grad) for one, grad in zip(maps, grads, strict=True)]


@over_variants
@pytest.mark.parametrize("method", [name for name in REPLICAS if name not in ALL_ROWS])
def test_a_method_equals_its_replica(method: str, variant: str) -> None:
    model, rows = built(variant), list(range(len(SIZES)))
    found = scores_of(method, model, inputs_of(variant, rows), TARGETS)
    for row in rows:
        maps = maps_by_hand(model, inputs_of(variant, [row]), TARGETS[row])
        expected = torch.tensor(REPLICAS[method](maps, 0), dtype=torch.float64)
        torch.testing.assert_close(found[row, : 1 + SIZES[row]], expected, **CLOSE)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "2 layers" in name])
def test_closed_forms_of_two_layers(variant: str) -> None:
    model = built(variant)
    for row, target in enumerate(TARGETS):
        inputs = inputs_of(variant, [row])
        (below, _), (above, _) = maps = maps_by_hand(model, inputs, target)
        one = torch.eye(1 + SIZES[row]).double()
        first, second = ((a.mean(0) + one) / 2 for a in (below, above))
        torch.testing.assert_close(scores_of("a-last", model, inputs, [target])[0], above[:, 0].mean(0), **CLOSE)
        torch.testing.assert_close(scores_of("rollout", model, inputs, [target])[0], (second @ first)[0], **CLOSE)
        flows = torch.minimum(second[0][:, None], first).sum(0)
        torch.testing.assert_close(scores_of("a-flow", model, inputs, [target])[0], flows, **CLOSE)
        torch.testing.assert_close(flows, torch.tensor(flows_from(maps, 0), dtype=torch.float64), **CLOSE)
        weighted = [(a * grad).clamp(min=0).mean(0) for a, grad in maps]
        relevance = ((one + weighted[1]) @ (one + weighted[0]))[0]
        torch.testing.assert_close(scores_of("gae", model, inputs, [target])[0, 1:], relevance[1:], **CLOSE)


@over_variants
@over_methods
def test_a_row_alone_is_as_good_as_all_rows(method: str, variant: str) -> None:
    as_good_as_all_rows(method, variant)


@pytest.mark.parametrize("method", methods())
def test_a_row_alone_in_the_only_layer(method: str) -> None:
    as_good_as_all_rows(method, next(iter(SINGLE)))


def as_good_as_all_rows(method: str, variant: str) -> None:
    rows = [0, 0, 0, 1, 1, 1, 2, 3]
    inputs, targets = inputs_of(variant, rows), [0, 1, 2, 0, 1, 2, 2, 0]
    narrow, whole = (scores_of(method, built(variant, kind), inputs, targets) for kind in (Graphormer, Whole))
    assert narrow.shape == inputs["attention_mask"].shape
    torch.testing.assert_close(narrow, whole, **CLOSE)
    assert narrow.abs().max() > 1e-4  # there is something to compare


@over_variants
@over_methods
def test_a_batch_equals_each_graph_alone_and_pads_have_nothing(method: str, variant: str) -> None:
    model, inputs = built(variant), inputs_of(variant, [0, 1, 2, 3])
    found = scores_of(method, model, inputs, TARGETS)
    assert found.shape == (4, 7)
    assert (found[~inputs["attention_mask"]] == 0).all()
    for row, target in enumerate(TARGETS):
        alone = scores_of(method, model, inputs_of(variant, [row]), [target])
        torch.testing.assert_close(found[row, : 1 + SIZES[row]], alone[0], **CLOSE)


@over_variants
@over_methods
def test_nodes_that_are_masked_have_nothing(method: str, variant: str) -> None:
    inputs = inputs_of(variant, [0, 1], kept=[[0, 3], []])  # of the second graph only the virtual node is left
    found = scores_of(method, built(variant), inputs, [1, 2])
    assert torch.isfinite(found).all()
    assert (found[~inputs["attention_mask"]] == 0).all()
    left = {name: one[:1, [0, 3]] for name, one in inputs.items() if name in ("distances", "paths")}
    left = {name: one[:, :, [0, 3]] for name, one in left.items()}
    left |= {name: inputs[name][:1, [0, 1, 4]] for name in ("inputs_embeds", "attention_mask")}
    torch.testing.assert_close(found[:1, [0, 1, 4]], scores_of(method, built(variant), left, [1]), **CLOSE)
    if method.partition(":")[0] in OWN_DROPPED:
        assert (found[1] == 0).all()


@pytest.mark.parametrize("method", OWN_DROPPED)
def test_nothing_is_said_about_the_place_that_is_read(method: str) -> None:
    variant = next(iter(VARIANTS))
    assert (scores_of(method, built(variant), inputs_of(variant, [0, 1]), [0, 1])[:, 0] == 0).all()


@pytest.mark.parametrize("method", ALL_ROWS)
def test_rows_that_did_not_look_are_not_summed(method: str) -> None:
    variant = next(iter(VARIANTS))
    inputs = inputs_of(variant, [0, 1])
    with pytest.raises(conserva.Error, match=rf"^{method} sums over the rows of all positions, but .* a single query"):
        find(method).apply(built(variant), inputs, [0, 1])
    assert scores_of(method, built(variant, Whole), inputs, [0, 1]).shape == (2, 7)


def test_the_row_stands_where_the_virtual_node_does() -> None:
    variant = next(iter(VARIANTS))
    attended = attention_pass(built(variant), inputs_of(variant, [0, 1]), [0, 1])
    below, above = attended.maps
    assert [tuple(one.probabilities.shape) for one in (below, above)] == [(2, 3, 7, 7), (2, 3, 1, 7)]
    for wide in (attended.probabilities(above), attended.gradients[above.number]):
        assert wide.shape == (2, 3, 7, 7)
        assert (wide[:, :, 1:] == 0).all()
    torch.testing.assert_close(attended.probabilities(above)[:, :, :1], above.probabilities)
    torch.testing.assert_close(attended.probabilities(below), below.probabilities)
    assert attended.rows().nonzero().tolist() == [[0, 0], [1, 0]]


@over_methods
@pytest.mark.parametrize("frozen", [False, True])
def test_the_model_is_as_it_was(method: str, frozen: bool) -> None:
    variant = next(iter(VARIANTS))
    model, inputs = built(variant), inputs_of(variant, [0, 1])
    before = {name: one.clone() for name, one in model.state_dict().items()}
    given = {name: one.clone() for name, one in inputs.items()}
    model.requires_grad_(not frozen)
    try:
        find(method).apply(model, inputs, [0, 1])
        assert all(one.requires_grad is not frozen and one.grad is None for one in model.parameters())
    finally:
        model.requires_grad_()
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert all(torch.equal(one, given[name]) and not one.requires_grad for name, one in inputs.items())
    assert not any(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(module._backward_hooks or module._backward_pre_hooks for module in model.modules())
