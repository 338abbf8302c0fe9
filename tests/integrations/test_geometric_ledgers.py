"""PyTorch Geometric: one ledger for each explained output, whose parts add up, equal to that of the output alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")

from torch_geometric.datasets import KarateClub
from torch_geometric.explain import Explainer, Explanation, unfaithfulness
from torch_geometric.nn import (
    BatchNorm,
    DiffGroupNorm,
    GraphNorm,
    InstanceNorm,
    LayerNorm,
    MeanSubtractionNorm,
    PairNorm,
    TransformerConv,
)

import conserva
from conserva.integrations.geometric import RelevanceExplainer
from conserva.integrations.geometric import explainer as explainer_module
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
    Ending,
    GraphModel,
    X,
    added_up,
    built,
    explainer,
)
from pages_of_code import run_page
from tiny import shake

EXACT = {"rtol": 1e-9, "atol": 1e-9}
RULES = ("gi", "ah+ln", "exact", "attnlrp")
LEDGER = ("explained_output", "input_relevance", "virtual_relevance", "position_relevance", "bias_relevance", "gap")
PHENOMENON = {"explanation_type": "phenomenon"}
TARGETS = torch.tensor([2, 0, 1])
SIZES, EDGES = (5, 2, 1), (PATH, PAIR, torch.zeros(2, 0, dtype=torch.long))
THREE = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
"""Three graphs, the last of which is a node without edges."""
ALL_EDGES = torch.cat([EDGES[0], EDGES[1] + 5, EDGES[2]], 1)
NODES = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
EDGE_VALUES = torch.randn(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(6))


def with_edges(net: nn.Module, chosen: slice) -> dict[str, Tensor]:
    return {"edge_attr": EDGE_VALUES[chosen]} if getattr(net, "takes_edges", False) else {}


def as_a_batch_and_alone(net: nn.Module, rules: str, at: str = "inputs", x: Tensor = NODES) -> list[Explanation]:
    """Explanations of three graphs as one batch, then of each alone."""
    explain = explainer(net, rules, at, **PHENOMENON)
    found = [explain(x, ALL_EDGES, batch=THREE, target=TARGETS, **with_edges(net, slice(None)))]
    nodes = edges = 0
    for number, (count, own) in enumerate(zip(SIZES, EDGES, strict=True)):
        more = with_edges(net, slice(edges, edges + own.shape[1]))
        batch = torch.zeros(count, dtype=torch.long)
        found.append(explain(x[nodes : nodes + count], own, batch=batch, target=TARGETS[number : number + 1], **more))
        nodes, edges = nodes + count, edges + own.shape[1]
    return found


def require_one_ledger_for_each(together: Explanation, alone: list[Explanation]) -> None:
    torch.testing.assert_close(together.node_mask, torch.cat([one.node_mask for one in alone]), **EXACT)
    for entry in LEDGER:
        if entry in together:
            assert together[entry].shape == (len(alone),)
            torch.testing.assert_close(together[entry], torch.cat([one[entry] for one in alone]), **EXACT)
    by_graph = torch.zeros(len(alone), dtype=torch.float64).index_add(0, together.batch, together.node_mask.sum(1))
    torch.testing.assert_close(by_graph, together.input_relevance, **EXACT)
    torch.testing.assert_close(added_up(together), together.explained_output, **EXACT)


# Graphs.


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rules", RULES)
def test_a_batch_has_the_ledgers_and_scores_of_each_graph_alone(model: str, rules: str) -> None:
    net = built(model)
    together, *alone = as_a_batch_and_alone(net, rules)
    require_one_ledger_for_each(together, alone)
    expected = net(NODES, ALL_EDGES, batch=THREE, **with_edges(net, slice(None)))
    torch.testing.assert_close(together.explained_output, expected[range(3), TARGETS].detach(), **EXACT)
    assert together.bias_relevance.abs().min() > 1e-6
    if rules == "exact":
        assert together.gap.abs().max() < 1e-10
    if rules == "gi":
        assert together.gap.abs().max() > 1e-3
    if "position_relevance" in together and getattr(net, "takes_edges", False):
        assert together.position_relevance[:2].abs().min() > 1e-6  # what edges add to the values
        assert together.position_relevance[2] == 0  # it has none


@pytest.mark.parametrize("model", WITH_IDS)
def test_a_batch_of_ids_has_the_ledgers_and_scores_of_each_graph_alone(model: str) -> None:
    build, at = WITH_IDS[model]
    together, *alone = as_a_batch_and_alone(shake(build()).double(), "ah+ln", at, torch.cat([IDS, IDS[:1]]))
    require_one_ledger_for_each(together, alone)


def test_one_of_several_graphs_is_explained_alone() -> None:
    net = built("GPSConv")
    together = explainer(net)(X, BOTH, batch=BATCH)
    for index in (1, torch.tensor([1]), torch.tensor([False, True])):
        one = explainer(net)(X, BOTH, batch=BATCH, index=index)
        assert not one.node_mask[:5].any()  # the nodes of other graphs
        torch.testing.assert_close(one.node_mask[5:], together.node_mask[5:], **EXACT)
        for entry in LEDGER:
            if entry in one:
                torch.testing.assert_close(one[entry], together[entry][1:], **EXACT)


class Normed(GraphModel):
    """A norm of PyTorch Geometric between attention layers, which knows of the graphs or not."""

    def __init__(self, norm: nn.Module, knows: bool) -> None:
        super().__init__("graph")
        self.first, self.norm, self.second, self.knows = TransformerConv(4, 8), norm, TransformerConv(8, 8), knows

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        x = self.first(x, edge_index)
        x = self.norm(x, batch) if self.knows else self.norm(x)
        return self.read_out(self.second(x.relu(), edge_index), batch)


def normed(norm: nn.Module, knows: bool = True) -> nn.Module:
    net = shake(Normed(norm, knows)).double()
    for module in net.modules():
        if getattr(module, "running_mean", None) is not None:
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    return net


NORMS: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm": lambda: normed(BatchNorm(8), False),
    "DiffGroupNorm": lambda: normed(DiffGroupNorm(8, 2), False),
    "GraphNorm": lambda: normed(GraphNorm(8)),
    "InstanceNorm": lambda: normed(InstanceNorm(8, affine=True)),
    "InstanceNorm with running statistics": lambda: normed(InstanceNorm(8, track_running_stats=True)),
    "LayerNorm of nodes": lambda: normed(LayerNorm(8, mode="node")),
    "LayerNorm of graphs": lambda: normed(LayerNorm(8)),
    "MeanSubtractionNorm": lambda: normed(MeanSubtractionNorm()),
    "PairNorm": lambda: normed(PairNorm()),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("rules", ["ah+ln", "exact"])
def test_norms_leave_every_graph_its_own_ledger(norm: str, rules: str) -> None:
    together, *alone = as_a_batch_and_alone(NORMS[norm](), rules)
    require_one_ledger_for_each(together, alone)


ACROSS = torch.cat([BOTH, torch.tensor([[4], [5]])], 1)
MIXED: dict[str, tuple[Callable[[], nn.Module], Tensor, str]] = {
    "GraphNorm": (lambda: normed(GraphNorm(8), False), BOTH, "The output of graph 0 depends on nodes of other graphs"),
    "LayerNorm": (lambda: normed(LayerNorm(8), False), BOTH, "a norm that is called without `batch`"),
    "PairNorm": (lambda: normed(PairNorm(), False), BOTH, "index=0"),
    "batch statistics": (lambda: normed(BatchNorm(8, track_running_stats=False), False), BOTH, "mixes samples"),
    "edges": (lambda: built("GATConv"), ACROSS, "edges connect the graphs"),
}


@pytest.mark.parametrize("case", MIXED)
def test_graphs_that_are_mixed_have_no_ledgers_of_their_own(case: str) -> None:
    build, edges, message = MIXED[case]
    with pytest.raises(conserva.Error, match=message):
        explainer(build())(X, edges, batch=BATCH)


@pytest.mark.parametrize("case", ["GraphNorm", "edges"])
def test_of_mixed_graphs_one_output_can_be_explained(case: str) -> None:
    build, edges, _ = MIXED[case]
    one = explainer(build())(X, edges, batch=BATCH, index=1)
    assert one.node_mask[:5].abs().max() > 1e-6
    torch.testing.assert_close(added_up(one), one.explained_output, **EXACT)


def test_outputs_that_are_not_those_of_graphs_may_depend_on_several() -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of_each = built("GATConv")

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            first, second = self.of_each(x, edge_index, batch)
            return torch.stack([first - second, second - first, first + second])

    one = explainer(Pairs())(X, BOTH, batch=BATCH)
    assert one.explained_output.shape == (3,)
    torch.testing.assert_close(added_up(one), one.explained_output, **EXACT)


# Nodes and edges.


class Links(GraphModel):
    """A score for each pair of nodes."""

    def __init__(self) -> None:
        super().__init__("node")
        self.layer = built("TransformerConv", "node")

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        x = self.layer(x, edge_index)
        return (x[edge_label_index[0]] - x[edge_label_index[1]])[:, :1]


LINKS = {"edge_label_index": torch.tensor([[0, 1, 4, 2], [3, 2, 0, 2]])}
EDGE_SCORES = {"mode": "binary_classification", "task_level": "edge", "return_type": "raw"}
PREDICTED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], dict[str, Any]]] = {
    "nodes": (lambda: built("GATv2Conv", "node"), {**MULTICLASS, "task_level": "node"}, {}),
    "nodes among all": (lambda: built("GPSConv", "node"), {**MULTICLASS, "task_level": "node"}, {}),
    "edges": (Links, EDGE_SCORES, LINKS),
    "numbers of edges": (Links, {"mode": "regression", "task_level": "edge"}, LINKS),
}


@pytest.mark.parametrize("case", PREDICTED)
@pytest.mark.parametrize("index", [[0, 3], [2, 0, 2], [-1], [True, False, True, True]])
@pytest.mark.parametrize("at_once", [1, 2, 16])
def test_outputs_have_their_own_ledgers(case: str, index: Any, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    build, config, more = PREDICTED[case]
    explain, chosen = explainer(build().double(), "ah+ln", model_config=config), torch.tensor(index)
    if case.startswith("nodes") and chosen.dtype == torch.bool:
        chosen = torch.cat([chosen, torch.tensor([False])])
    count = 4 if more else 5
    alone = [explain(X[:5], PATH, index=int(i), **more) for i in torch.arange(count)[chosen]]
    monkeypatch.setattr(explainer_module, "OUTPUTS_AT_ONCE", at_once)
    together = explain(X[:5], PATH, index=chosen, **more)
    torch.testing.assert_close(together.node_mask, torch.stack([one.node_mask for one in alone]).sum(0), **EXACT)
    for entry in LEDGER:
        if entry in together:
            torch.testing.assert_close(together[entry], torch.cat([one[entry] for one in alone]), **EXACT)
    torch.testing.assert_close(added_up(together), together.explained_output, **EXACT)


def test_signs_and_targets_belong_to_their_outputs() -> None:
    model, targets = Links().double(), torch.tensor([0, 1, 1, 0])
    explain = explainer(model, model_config=EDGE_SCORES, **PHENOMENON)
    signed = (model(X[:5], PATH, **LINKS)[:, 0] * (2 * targets - 1)).detach()
    one = explain(X[:5], PATH, target=targets, **LINKS)
    torch.testing.assert_close(one.explained_output, signed, **EXACT)
    some = explain(X[:5], PATH, target=targets, index=torch.tensor([3, 1]), **LINKS)
    torch.testing.assert_close(some.explained_output, signed[[3, 1]], **EXACT)


def test_a_regression_does_not_use_targets() -> None:
    explain = explainer(Links().double(), model_config={"mode": "regression", "task_level": "edge"}, **PHENOMENON)
    found = explain(X[:5], PATH, target=torch.zeros(1), **LINKS).explained_output
    torch.testing.assert_close(found, Links().double()(X[:5], PATH, **LINKS)[:, 0].detach(), **EXACT)


@pytest.mark.parametrize("edges", [PATH, PATH[:, :5]], ids=["nodes", "nodes and edges"])
def test_subgraphs_keep_all_ledgers(edges: Tensor) -> None:
    one = explainer(built("GATConv", "node"), model_config={**MULTICLASS, "task_level": "node"})(X[:5], edges)
    assert len(one.gap) == 5  # as many as nodes
    part = one.get_explanation_subgraph()
    assert 0 < part.num_nodes < 5
    for entry in LEDGER:
        if entry in one:
            assert torch.equal(part[entry], one[entry])
            assert not one.is_node_attr(entry)
            assert not one.is_edge_attr(entry)
    assert one.is_node_attr("node_mask")


# The documentation of PyTorch Geometric and ours.


def test_an_explanation_of_a_node_as_in_the_documentation_of_pytorch_geometric(tmp_path: Path) -> None:
    data, scores = KarateClub()[0], shake(NodeScores())
    model = Ending(scores, MULTI_ENDINGS["log_probs"])
    explain = Explainer(
        model=model,
        algorithm=RelevanceExplainer("exact"),
        explanation_type="model",
        node_mask_type="attributes",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "log_probs"},
    )
    one = explain(data.x, data.edge_index, index=10)

    class OneSample(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = scores

        def forward(self, x: Tensor) -> Tensor:
            return self.scores(x[0], data.edge_index)

    chosen = int(model(data.x, data.edge_index)[10].argmax())
    expected = conserva.relevance(OneSample().eval(), data.x[None], lambda out: out[10, chosen].reshape(1))
    torch.testing.assert_close(one.node_mask, expected.values["x"][0], rtol=0, atol=1e-6)
    torch.testing.assert_close(one.explained_output, expected.output, rtol=0, atol=1e-6)
    for entry, numbers in {"bias_relevance": expected.ledger.biases, "gap": expected.ledger.gap}.items():
        torch.testing.assert_close(one[entry], numbers, rtol=0, atol=1e-6)
    assert 0 <= unfaithfulness(explain, one) <= 1
    for package in ("matplotlib", "pandas"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    one.visualize_feature_importance(str(tmp_path / "features.png"), top_k=10)
    assert (tmp_path / "features.png").stat().st_size


class NodeScores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = TransformerConv(34, 8, heads=2), TransformerConv(16, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def test_the_page_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    run_page(Path(__file__).parents[2] / "docs" / "doors" / "geometric.md", capsys)
