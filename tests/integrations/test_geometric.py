"""PyTorch Geometric: explanations are relevance, books close, Graphormer keeps its contract."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")

from torch_geometric.nn import GCNConv, GINConv, GPSConv, global_add_pool
from torch_geometric.utils import softmax, to_dense_batch

import conserva
from conserva.engine.passes import Relevance
from conserva.integrations.geometric import RelevanceExplainer, SparseGraphormer
from graph_models import (
    BATCH,
    BOTH,
    IDS,
    MODELS,
    MULTI_ENDINGS,
    MULTICLASS,
    PAIR,
    PATH,
    WITH_IDS,
    Dense,
    Ending,
    OneTable,
    X,
    added_up,
    built,
    explainer,
    numbers_and_edges,
)
from small_graphs import GRAPHS, arrays, padded, small
from tiny import shake

EXACT = {"rtol": 1e-10, "atol": 1e-10}
RULES = ("gi", "ah+ln", "exact", "attnlrp")
over_models = pytest.mark.parametrize("model", MODELS)


def directly(model: nn.Module, x: Tensor, edges: Tensor, target: Any, rules: str) -> Relevance:
    class OneSample(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x[0], edges)

    return conserva.relevance(OneSample().eval(), x[None], lambda out: target(out).reshape(1), rules=rules)


# The algorithm.


@over_models
@pytest.mark.parametrize("rules", RULES)
def test_an_explanation_is_the_relevance_of_the_predicted_class(model: str, rules: str) -> None:
    net = built(model)
    one = explainer(net, rules, node_mask_type="attributes")(X[:5], PATH)
    expected = directly(net, X[:5], PATH, lambda out: out[0, out.argmax()], rules)
    assert one.validate()
    assert one.rules == rules
    torch.testing.assert_close(one.node_mask, expected.values["x"][0], **EXACT)
    torch.testing.assert_close(one.explained_output, net(X[:5], PATH).max().detach().reshape(1), **EXACT)
    by_object = explainer(net, rules)(X[:5], PATH)
    torch.testing.assert_close(by_object.node_mask, one.node_mask.sum(1, keepdim=True), **EXACT)
    torch.testing.assert_close(one.bias_relevance, expected.ledger.biases, **EXACT)


@pytest.mark.parametrize("model", WITH_IDS)
@pytest.mark.parametrize("graphs", ["one", "two"])
def test_ids_have_relevance_at_their_embeddings(model: str, graphs: str) -> None:
    build, at = WITH_IDS[model]
    net = shake(build()).double()
    whole = {"x": IDS, "edge_index": BOTH, "batch": BATCH}
    given = whole if graphs == "two" else {"x": IDS[:5], "edge_index": PATH}
    one = explainer(net, at=at)(**given)
    assert one.node_mask.shape == (len(given["x"]), 1)
    torch.testing.assert_close(added_up(one), one.explained_output, **EXACT)
    assert one.validate()
    if at == "inputs":  # all of them together make the number, with the virtual node
        assert one.node_mask.abs().min() > 0
    first = explainer(net, at=at)(IDS[:5], PATH)
    torch.testing.assert_close(one.node_mask[:5], first.node_mask, **EXACT)


def test_graphormers_virtual_node_has_its_share_wherever_relevance_is_read() -> None:
    net = numbers_and_edges()
    at_inputs, at_tokens = (explainer(net, "ah+ln", at)(X, BOTH, batch=BATCH) for at in ("inputs", "graphormer.tokens"))
    torch.testing.assert_close(at_inputs.virtual_relevance, at_tokens.virtual_relevance, **EXACT)
    assert at_inputs.virtual_relevance.abs().min() > 1e-3
    for one in (at_inputs, at_tokens):
        torch.testing.assert_close(added_up(one), one.explained_output, **EXACT)
    found = conserva.relevance(net.graphormer, padded_inputs(X[:5], PATH), rules="ah+ln", at="tokens").scores()
    torch.testing.assert_close(at_tokens.node_mask[:5, 0], found[0, 1:], **EXACT)


def padded_inputs(x: Tensor, edges: Tensor) -> dict[str, Tensor]:
    count, pairs = len(x), {(int(a), int(b)): 1 for a, b in edges.T if a < b}
    return {**arrays((count, pairs), True), "nodes": x[None]}


ONE_ENDINGS = {"raw": lambda out: out[:, 0], "probs": lambda out: torch.sigmoid(out[:, :1]).view(-1)}


@pytest.mark.parametrize("return_type", MULTI_ENDINGS)
def test_of_probabilities_the_score_before_them_is_explained(return_type: str) -> None:
    net = built("TransformerConv")
    ended = Ending(net, MULTI_ENDINGS[return_type])
    raw = explainer(net, "ah+ln")(X[:5], PATH)
    one = explainer(ended, "ah+ln", model_config={**MULTICLASS, "return_type": return_type})(X[:5], PATH)
    torch.testing.assert_close(one.node_mask, raw.node_mask, **EXACT)
    torch.testing.assert_close(one.explained_output, raw.explained_output, **EXACT)


@pytest.mark.parametrize("return_type", MULTI_ENDINGS)
def test_the_softmax_of_the_output_is_no_attention(return_type: str) -> None:
    torch.manual_seed(0)
    net = Convolution().double().eval()
    config = {"model_config": {**MULTICLASS, "return_type": return_type}}
    ended = Ending(net, MULTI_ENDINGS[return_type])
    with pytest.raises(conserva.Error, match="has no attention"):
        explainer(ended, "exact", **config)(X[:5], PATH)
    for rules in ("exact", "attnlrp"):
        without = conserva.rules(rules, attention="refuse")
        one, raw = explainer(ended, without, **config)(X[:5], PATH), explainer(net, without)(X[:5], PATH)
        torch.testing.assert_close(one.node_mask, raw.node_mask, **EXACT)
        torch.testing.assert_close(added_up(one), ended.model(X[:5], PATH).max().view(1), **EXACT)


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(X.shape[1], 6), GCNConv(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        return global_add_pool(self.second(self.first(x, edge_index).relu(), edge_index), batch)


@pytest.mark.parametrize("return_type", ONE_ENDINGS)
@pytest.mark.parametrize("target", [0, 1])
def test_a_binary_score_speaks_for_class_1(return_type: str, target: int) -> None:
    net = built("MultiheadAttention")
    config = {"mode": "binary_classification", "task_level": "graph", "return_type": return_type}
    explain = explainer(Ending(net, ONE_ENDINGS[return_type]), explanation_type="phenomenon", model_config=config)
    one = explain(X[:5], PATH, target=torch.tensor([target]))
    sign = 1 if target else -1
    expected = directly(net, X[:5], PATH, lambda out: out[0, 0], "exact")
    torch.testing.assert_close(one.node_mask[:, 0], sign * expected.scores()[0], **EXACT)
    assert float(one.explained_output) == pytest.approx(sign * net(X[:5], PATH)[0, 0].item())
    torch.testing.assert_close(added_up(one), one.explained_output, **EXACT)


def test_a_regression_is_explained_as_it_is() -> None:
    net = built("GATConv")
    one = explainer(Ending(net, lambda out: out[:, 1:2]), model_config={"mode": "regression", "task_level": "graph"})
    expected = directly(net, X[:5], PATH, lambda out: out[0, 1], "exact").scores()[0]
    torch.testing.assert_close(one(X[:5], PATH).node_mask[:, 0], expected, **EXACT)


@over_models
def test_the_model_is_left_as_it_was(model: str) -> None:
    net = built(model).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x = X[:5].clone().requires_grad_()
    with torch.no_grad():
        explainer(net)(x, PATH)
    assert net.training
    assert x.grad is None
    assert all(parameter.grad is None for parameter in net.parameters())
    assert not any(module._forward_hooks or module._backward_hooks for module in net.modules())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_other_inputs_are_constants_even_if_they_want_a_gradient() -> None:
    net, edge_attr = built("TransformerConv"), torch.randn(10, 2, dtype=torch.float64)
    plain = explainer(net)(X[:5], PATH, edge_attr=edge_attr)
    wanting = explainer(net)(X[:5], PATH, edge_attr=edge_attr.clone().requires_grad_())
    torch.testing.assert_close(wanting.node_mask, plain.node_mask, **EXACT)
    assert plain.position_relevance.abs() > 1e-6  # what edges add to the values
    assert abs(wanting.gap) < 1e-10


@pytest.mark.parametrize("order", ["index", "ptr"])
@pytest.mark.parametrize("rules", ["ah+ln", "attnlrp"])
def test_the_softmax_of_pytorch_geometric_is_read_as_attention(order: str, rules: str) -> None:
    scores, index = torch.randn(6, 2, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 2, 2])
    groups = {"index": index} if order == "index" else {"ptr": torch.tensor([0, 3, 4, 6])}
    live = scores.clone().requires_grad_()
    with conserva.rules(rules) as context:
        out = softmax(live, **groups)
    assert context.coverage.count("attention")
    torch.testing.assert_close(out.detach(), softmax(scores, index), **EXACT)
    assert out.requires_grad == (rules == "attnlrp")
    if out.requires_grad:
        upper = torch.randn_like(out)
        (ours,) = torch.autograd.grad((out * upper).sum(), live)
        (plain,) = torch.autograd.grad((softmax(live, index) * upper).sum(), live)
        torch.testing.assert_close(ours, plain, **EXACT)


# What PyTorch Geometric does with it.


def test_the_views_of_pytorch_geometric_take_it() -> None:
    one = explainer(built("MultiheadAttention"))(X, BOTH, batch=BATCH)
    positive = int((one.node_mask > 0).sum())
    assert 0 < positive < 7
    assert one.get_explanation_subgraph().num_nodes == positive
    assert one.get_complement_subgraph().num_nodes == 0  # not the rest: nodes with relevance below 0 are in neither
    assert one.threshold("topk_hard", 2).node_mask.sum() == 2
    assert one.available_explanations == ["node_mask"]
    with pytest.raises(ValueError, match="edge_mask"):
        one.visualize_graph()


@pytest.mark.parametrize(
    ("changes", "at", "reason"),
    [
        ({"edge_mask_type": "object"}, "inputs", "only nodes have relevance"),
        ({"node_mask_type": None, "edge_mask_type": "object"}, "inputs", "only nodes have relevance"),
        ({"node_mask_type": "common_attributes"}, "inputs", "got 'common_attributes'"),
        ({"node_mask_type": "attributes"}, "features", "with at='features'"),
    ],
)
def test_unsupported_masks_are_refused_with_a_reason(
    changes: dict[str, Any], at: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="does not support"):
        explainer(built("MultiheadAttention"), at=at, **changes)
    assert reason in caplog.text


class Gin(nn.Module):
    """A graph network without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = GINConv(nn.Linear(4, 3))

    def forward(self, x: Tensor, edge_index: Tensor, node_mask: Tensor | None = None) -> Tensor:
        return global_add_pool(self.layer(x, edge_index), None)


PHENOMENON = {"explanation_type": "phenomenon"}
BINARY = {"mode": "binary_classification", "task_level": "graph", "return_type": "raw"}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no attention": (lambda: explainer(Gin())(X[:5].float(), PATH), "no attention"),
    "no softmax": (
        lambda: explainer(GPSConv(4, None, attn_type="performer"), "ah")(X[:5].float(), PATH),
        "'attn' is PerformerAttention",
    ),
    "attributes of ids": (
        lambda: explainer(Dense("graph", OneTable()), node_mask_type="attributes")(IDS[:5], PATH),
        r"node_mask_type='attributes' with x in torch.int64",
    ),
    "a dict": (
        lambda: explainer(Gin()).algorithm(Gin(), {"a": X}, PATH, target=torch.tensor([0])),
        "x is dict",
    ),
    "shape": (lambda: explainer(built("GPSConv")).algorithm(Gin(), X[0], PATH, target=None), r"shape \(4,\)"),
    "mask": (
        lambda: explainer(Gin())(X[:5].float(), PATH, node_mask=torch.ones(5)),
        "argument 'node_mask'",
    ),
    "ledger": (
        lambda: explainer(Gin()).algorithm(Gin(), X[:5], PATH, target=torch.tensor([0]), gap=torch.ones(5)),
        "argument 'gap'",
    ),
    "rules": (lambda: RelevanceExplainer("best"), "rules='best'"),
    "places": (lambda: RelevanceExplainer(at=["a", "b"]), "at=\\['a', 'b'\\]"),
    "place": (lambda: explainer(built("GPSConv"), at="nowhere")(X[:5], PATH), "at='nowhere'"),
    "several places": (lambda: explainer(built("GPSConv"), at="layers.?")(X[:5], PATH), "several sites.*layers.1"),
    "rows": (lambda: explainer(built("GPSConv"), at="out")(X[:5], PATH), r"at='out' has shape \(1, 3\) for 5 node"),
    "target": (
        lambda: explainer(built("GPSConv"), **PHENOMENON)(X[:5], PATH, target=torch.tensor([3])),
        "classes 3 to 3: there are 0 to 2",
    ),
    "targets": (
        lambda: explainer(built("GPSConv"), **PHENOMENON)(X[:5], PATH, target=torch.tensor([0, 1])),
        "2 entries for 1 output",
    ),
    "no such output": (
        lambda: explainer(built("GPSConv"))(X[:5], PATH, index=1),
        r"index=tensor\(\[1\]\) does not fit",
    ),
    "no output": (
        lambda: explainer(built("GPSConv"))(X[:5], PATH, index=torch.tensor([False])),
        r"selects none of 1 output\(s\)",
    ),
    "numbers as targets": (
        lambda: explainer(built("GPSConv"), **PHENOMENON)(X[:5], PATH, target=torch.tensor([0.5])),
        "give class indices",
    ),
    "no one number": (
        lambda: explainer(built("GPSConv"), model_config=BINARY, **PHENOMENON)(X[:5], PATH, target=torch.tensor([1])),
        "3 numbers for each output",
    ),
    "no probabilities": (
        lambda: explainer(built("GPSConv"), model_config={**MULTICLASS, "return_type": "probs"})(X[:5], PATH),
        "return_type='probs', but",
    ),
    "several tensors": (
        lambda: explainer(Ending(built("GPSConv"), lambda out: (out,)), **PHENOMENON)(
            X[:5], PATH, target=torch.tensor([0])
        ),
        "returned tuple",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_explained_is_said(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(conserva.Error, match=message):
        call()


# Graphormer under the contract of PyTorch Geometric.


@pytest.mark.parametrize("numbers", [True, False], ids=["numbers", "ids"])
def test_sparse_graphormer_is_graphormer(numbers: bool) -> None:
    net = small(edge_values=5, **({"node_features": 3} if numbers else {"node_values": 9}))
    inputs, start = padded(numbers), 0
    nodes, edges, ids, batch = [], [], [], []
    for number, (count, pairs) in enumerate(GRAPHS):
        nodes.append(inputs["nodes"][number, :count])
        for (a, b), kind in pairs.items():
            edges += [(start + a, start + b), (start + b, start + a)]
            ids += [kind, kind]
        batch += [number] * count
        start += count
    sparse, given = SparseGraphormer(net), (torch.cat(nodes), torch.tensor(edges).T)
    more = {"batch": torch.tensor(batch), "edge_attr": torch.tensor(ids)}
    torch.testing.assert_close(sparse(*given, **more), net(**inputs).logits, **EXACT)
    kept = torch.arange(start) % 3 > 0
    there = to_dense_batch(kept, more["batch"])[0]
    inputs["attention_mask"][:, 1 : 1 + there.shape[1]] &= there
    torch.testing.assert_close(sparse(*given, **more, kept=kept), net(**inputs).logits, **EXACT)


NUMBERS = torch.ones(3, 4, dtype=torch.float64)
WRONG_GRAPHS: dict[str, tuple[dict[str, Any], str]] = {
    "one way": ({"edge_index": torch.tensor([[0], [1]]), "edge_attr": torch.tensor([1])}, "not 1 to 0"),
    "outside": ({"edge_index": torch.tensor([[0, 3], [3, 0]])}, "between the nodes 0 to 2"),
    "shape": ({"edge_index": torch.tensor([0, 1])}, "2 x edges"),
    "across": ({"edge_index": PAIR, "batch": torch.tensor([0, 1, 1])}, "nodes of different graphs"),
    "order": ({"edge_index": PAIR, "batch": torch.tensor([1, 0, 0])}, "not in ascending order"),
    "empty": ({"edge_index": PAIR, "batch": torch.tensor([0, 0, 2])}, "has no node of graph 1"),
    "batch": ({"edge_index": PAIR, "batch": torch.tensor([0, 0])}, "give 3 integers"),
    "kept": ({"edge_index": PAIR, "kept": torch.tensor([1, 0, 1])}, "give 3 booleans"),
    "ids": ({"edge_index": PAIR, "edge_attr": torch.tensor([0.5, 0.5])}, "the id of each"),
}


@pytest.mark.parametrize("case", WRONG_GRAPHS)
def test_wrong_graphs_are_refused(case: str) -> None:
    given, message = WRONG_GRAPHS[case]
    with pytest.raises(conserva.Error, match=message):
        SparseGraphormer(small(node_features=4, edge_values=5))(NUMBERS, **{"edge_attr": torch.tensor([1, 1]), **given})


def test_only_graphormer_is_wrapped() -> None:
    with pytest.raises(conserva.Error, match="graphormer is Linear"):
        SparseGraphormer(nn.Linear(1, 1))
