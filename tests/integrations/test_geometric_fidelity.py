"""Fidelity of signed scores, on models whose answers are sums: every number is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")

from torch_geometric.explain import Explanation
from torch_geometric.explain.metric import fidelity as pyg_fidelity
from torch_geometric.nn import global_add_pool

import conserva
from conserva.integrations.geometric import fidelity
from graph_models import (
    BATCH,
    BOTH,
    IDS,
    MODELS,
    MULTI_ENDINGS,
    MULTICLASS,
    PATH,
    Dense,
    Ending,
    OneTable,
    X,
    built,
    explainer,
)
from tiny import shake


class SumOfNodes(nn.Module):
    """Class 1 has the sum of the nodes and of their edges as its score, class 0 has 0."""

    def __init__(self, one_score: bool = False) -> None:
        super().__init__()
        self.one_score = one_score

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None, edge_attr: Tensor | None = None
    ) -> Tensor:
        score = global_add_pool(x, batch)
        if edge_attr is not None:
            assert edge_attr.shape[0] == edge_index.shape[1]
            score = score.index_add(0, batch[edge_index[0]], edge_attr)
        return score if self.one_score else torch.cat([0 * score, score], 1)


class SumOfKept(SumOfNodes):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
        return super().forward(x if kept is None else x * kept[:, None], edge_index, batch)


def given(x: list[float], scores: list[float], *, target: Any = None, index: Any = None, **kwargs: Any) -> Explanation:
    edges = kwargs.pop("edge_index", torch.zeros(2, 0, dtype=torch.long))
    numbers = torch.tensor(x, dtype=torch.float64)[:, None]
    one = Explanation(x=numbers, edge_index=edges, node_mask=torch.tensor(scores, dtype=torch.float64)[:, None])
    one._model_args = list(kwargs)
    one.target, one.index = target, index
    for name, value in kwargs.items():
        one[name] = value
    return one


def loss(score: float, alone: float) -> float:
    """1 - exp(-KL) between two classes with the scores 0 and another."""
    p, q = (1 / (1 + math.exp(-one)) for one in (score, alone))
    return 1 - math.exp(-(p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))))


REMOVALS = {"subgraph": SumOfNodes, "zeros": SumOfNodes, "mask": SumOfKept}


@pytest.mark.parametrize("removal", REMOVALS)
def test_fidelity_of_a_known_sum(removal: str) -> None:
    explain = explainer(REMOVALS[removal]())
    # 3 - 1 - 1 is class 1; without the first node it is class 0, and of the first alone class 1.
    good = fidelity(explain, given([3, -1, -1], [3, -1, -1]), top=1 / 3, removal=removal)
    assert (good.plus, good.minus, good.characterisation) == (1, 0, 1)
    assert good.unfaithfulness == pytest.approx(loss(1, 3))
    assert (good.removal, good.top, good.predictions) == (removal, 1 / 3, 1)
    # With the signs turned the first of the others is the top: nothing changes without it, and alone it is class 0.
    bad = fidelity(explain, given([3, -1, -1], [-3, 1, 1]), top=1 / 3, removal=removal)
    assert (bad.plus, bad.minus, bad.characterisation) == (0, 1, 0)
    assert bad.unfaithfulness == pytest.approx(loss(1, -1))
    # Graphs count each for itself, in one batch or in several explanations.
    batch = torch.tensor([0, 0, 0, 1, 1, 1])
    both = given([3, -1, -1, 3, -1, -1], [3, -1, -1, -3, 1, 1], batch=batch)
    apart = [given([3, -1, -1], [3, -1, -1]), given([3, -1, -1], [-3, 1, 1])]
    for several in (both, apart):
        found = fidelity(explain, several, top=1 / 3, removal=removal)
        assert (found.plus, found.minus, found.predictions) == (0.5, 0.5, 2)
        assert found.characterisation == 0.5
        assert found.unfaithfulness == pytest.approx((loss(1, 3) + loss(1, -1)) / 2)


def test_fidelity_does_not_depend_on_the_scale_of_scores_as_that_of_pytorch_geometric_does() -> None:
    explain = explainer(SumOfNodes())
    large, tiny = (given([3, -1, -1], scores) for scores in ([3, -1, -1], [0.03, -0.01, -0.01]))
    assert fidelity(explain, large, top=1 / 3) == fidelity(explain, tiny, top=1 / 3)
    large.target = tiny.target = torch.tensor([1])
    assert pyg_fidelity(explain, large)[0] == 1
    assert pyg_fidelity(explain, tiny)[0] == 0


def test_the_model_decides_how_nodes_go_unless_one_says_so() -> None:
    one = given([3, -1, -1], [3, -1, -1])
    assert fidelity(explainer(SumOfNodes()), one).removal == "subgraph"
    assert fidelity(explainer(SumOfKept()), one).removal == "mask"
    assert fidelity(explainer(SumOfKept()), one, removal="zeros").removal == "zeros"


@pytest.mark.parametrize(("top", "count"), [(0.01, 1), (0.3, 1), (0.5, 2), (0.7, 3), (0.99, 3)])
def test_the_top_share_is_one_node_at_least_and_not_all(top: float, count: int) -> None:
    numbers = [4.0, 3.0, 2.0, 1.0]
    found = fidelity(explainer(SumOfNodes()), given(numbers, numbers), top=top)
    assert found.unfaithfulness == pytest.approx(loss(10, sum(numbers[:count])))


def test_edges_go_with_their_nodes() -> None:
    kwargs = {"batch": torch.zeros(3, dtype=torch.long), "edge_index": torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])}
    weights = torch.tensor([[5.0], [5.0], [-2.0], [-2.0]], dtype=torch.float64)
    # With the edges the sum is 1 + 6; of the last two nodes -2 - 4, of the first alone 3.
    found = fidelity(explainer(SumOfNodes()), given([3, -1, -1], [3, -1, -1], edge_attr=weights, **kwargs), top=1 / 3)
    assert (found.plus, found.minus) == (1, 0)
    assert found.unfaithfulness == pytest.approx(loss(7, 3))


@pytest.mark.parametrize("return_type", ["raw", "probs"])
def test_fidelity_of_one_score(return_type: str) -> None:
    model = SumOfNodes(one_score=True)
    net = model if return_type == "raw" else Ending(model, torch.sigmoid)
    config = {"mode": "binary_classification", "task_level": "graph", "return_type": return_type}
    found = fidelity(explainer(net, model_config=config), given([3, -1, -1], [3, -1, -1]), top=1 / 3)
    assert (found.plus, found.minus) == (1, 0)
    assert found.unfaithfulness == pytest.approx(loss(1, 3))


@pytest.mark.parametrize("return_type", MULTI_ENDINGS)
def test_fidelity_of_probabilities(return_type: str) -> None:
    net = Ending(SumOfNodes(), MULTI_ENDINGS[return_type])
    found = fidelity(
        explainer(net, model_config={**MULTICLASS, "return_type": return_type}),
        given([3, -1, -1], [3, -1, -1]),
        top=1 / 3,
    )
    assert found.unfaithfulness == pytest.approx(loss(1, 3))


@pytest.mark.parametrize(("target", "plus"), [(0, 0), (1, 1), (2, 1)])
def test_of_a_phenomenon_it_counts_whether_the_prediction_is_right(target: int, plus: int) -> None:
    three = Ending(SumOfNodes(), lambda out: torch.cat([out, -out[:, 1:]], 1))  # class 2 where the sum is below 0
    one = given([3, -1, -1], [3, -1, -1], target=torch.tensor([target]))
    found = fidelity(explainer(three, explanation_type="phenomenon"), one, top=1 / 3)
    assert (found.plus, found.minus) == (plus, 0)
    assert fidelity(explainer(three), one, top=1 / 3).plus == 1


class SumOfNeighbours(nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        score = x.index_add(0, edge_index[1], x[edge_index[0]])
        return torch.cat([0 * score, score], 1)


def test_an_explained_node_always_stays() -> None:
    star = torch.tensor([[0, 1, 3], [2, 2, 2]])  # all lead to node 2
    explain = explainer(SumOfNeighbours(), model_config={**MULTICLASS, "task_level": "node"})
    one = given([4, -1, -1, -1], [4, -1, 9, -1], edge_index=star, index=torch.tensor([2]))
    # 4 - 1 - 1 - 1 is class 1; without node 0 it is -3, class 0; with node 2 and node 0 alone 3.
    for removal in ("subgraph", "zeros"):
        found = fidelity(explain, one, top=1 / 3, removal=removal)
        assert (found.plus, found.minus, found.predictions) == (1, 0, 1)
        assert found.unfaithfulness == pytest.approx(loss(1, 3))


@pytest.mark.parametrize("model", MODELS)
def test_fidelity_takes_what_the_explainer_returns(model: str) -> None:
    explain = explainer(built(model), "ah+ln")
    found = fidelity(explain, explain(X, BOTH, batch=BATCH), top=0.4)
    assert found.removal == ("mask" if model == "Graphormer" else "subgraph")
    assert found.predictions == 2
    assert 0 < found.unfaithfulness < 1


ONE = given([3, -1, -1], [3, -1, -1])
REGRESSION = {"mode": "regression", "task_level": "graph"}
WRONG_FIDELITY: dict[str, tuple[Callable[[], Any], str]] = {
    "top": (lambda: fidelity(explainer(SumOfNodes()), ONE, top=1), "top=1:"),
    "removal": (lambda: fidelity(explainer(SumOfNodes()), ONE, removal="magic"), "removal='magic'"),
    "mask": (lambda: fidelity(explainer(SumOfNodes()), ONE, removal="mask"), "has no argument `kept`"),
    "none": (lambda: fidelity(explainer(SumOfNodes()), []), "explanations is empty"),
    "no nodes": (lambda: fidelity(explainer(SumOfNodes()), Explanation(x=ONE.x)), "no node_mask"),
    "regression": (lambda: fidelity(explainer(SumOfNodes(), model_config=REGRESSION), ONE), "mode='regression'"),
    "one node": (lambda: fidelity(explainer(SumOfNodes()), given([3], [3])), "a single node"),
    "all nodes": (
        lambda: fidelity(explainer(SumOfNeighbours(), model_config={**MULTICLASS, "task_level": "node"}), ONE),
        "index=",
    ),
    "ids": (
        lambda: fidelity(
            ids := explainer(shake(Dense("graph", OneTable())), "ah"), ids(IDS[:5], PATH), removal="zeros"
        ),
        "x in torch.int64",
    ),
}


@pytest.mark.parametrize("case", WRONG_FIDELITY)
def test_what_has_no_fidelity_is_said(case: str) -> None:
    call, message = WRONG_FIDELITY[case]
    with pytest.raises(conserva.Error, match=message):
        call()
