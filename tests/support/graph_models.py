"""Graph Transformers as users of PyTorch Geometric write them, small, and the graphs to explain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")

from torch_geometric.explain import Explainer, Explanation
from torch_geometric.nn import GATConv, GATv2Conv, GINConv, GPSConv, TransformerConv, global_mean_pool
from torch_geometric.utils import to_dense_batch

from conserva.integrations.geometric import RelevanceExplainer, SparseGraphormer
from small_graphs import small
from tiny import shake

MULTICLASS = {"mode": "multiclass_classification", "task_level": "graph", "return_type": "raw"}


class GraphModel(nn.Module):
    """Layers with an activation between them, then a mean over the nodes unless nodes are predicted."""

    def __init__(self, level: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.level, self.out = level, nn.Linear(8, 3)

    def read_out(self, x: Tensor, batch: Tensor | None) -> Tensor:
        return self.out(global_mean_pool(x, batch) if self.level == "graph" else x)


class Gps(GraphModel):
    def __init__(self, level: str) -> None:
        super().__init__(level)
        self.embed = nn.Linear(4, 8)
        local = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.layers = nn.ModuleList(
            [GPSConv(8, GINConv(local), heads=2), GPSConv(8, TransformerConv(8, 4, 2), heads=2, norm="layer_norm")]
        )

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, edge_index, batch)
        return self.read_out(x, batch)


class Transformer(GraphModel):
    takes_edges = True

    def __init__(self, level: str) -> None:
        super().__init__(level)
        self.first, self.second = (
            TransformerConv(4, 4, 2, edge_dim=2),
            TransformerConv(8, 8, 2, concat=False, beta=True),
        )
        self.norm = nn.LayerNorm(8)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None, batch: Tensor | None = None
    ) -> Tensor:
        edge_attr = x.new_ones(edge_index.shape[1], 2) if edge_attr is None else edge_attr
        x = self.norm(self.first(x, edge_index, edge_attr)).relu()
        return self.read_out(self.second(x, edge_index), batch)


class Gat(GraphModel):
    def __init__(self, level: str, conv: type[nn.Module]) -> None:
        super().__init__(level)
        self.first, self.second = conv(4, 4, 2), conv(8, 8)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        return self.read_out(self.second(self.first(x, edge_index).relu(), edge_index), batch)


class Dense(GraphModel):
    """Attention among all nodes of a graph, whatever its edges."""

    def __init__(self, level: str, features: nn.Module | None = None) -> None:
        super().__init__(level)
        self.features = features or nn.Linear(4, 8)
        self.attention, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        x = self.features(x)
        h, there = to_dense_batch(x, batch)
        h = self.attention(h, h, h, key_padding_mask=~there, need_weights=False)[0]
        return self.read_out(self.norm(x + h[there]), batch)


class Columns(nn.Module):
    """A table for each feature, as in the Open Graph Benchmark."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(9, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return sum(table(x[:, i]) for i, table in enumerate(self.tables))


class OneTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x).sum(1)


def numbers_and_edges() -> SparseGraphormer:
    return SparseGraphormer(small(node_features=4))


MODELS: dict[str, Callable[[str], nn.Module]] = {
    "GPSConv": Gps,
    "TransformerConv": Transformer,
    "GATConv": lambda level: Gat(level, GATConv),
    "GATv2Conv": lambda level: Gat(level, GATv2Conv),
    "MultiheadAttention": Dense,
    "Graphormer": lambda level: numbers_and_edges(),
}
WITH_IDS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "one table": (lambda: Dense("graph", OneTable()), "inputs"),
    "a table for each": (lambda: Dense("graph", Columns()), "features"),
    "a table for each, at its inputs": (lambda: Dense("graph", Columns()), "inputs"),
    "Graphormer": (lambda: SparseGraphormer(small(node_values=9)), "inputs"),
    "Graphormer's tokens": (lambda: SparseGraphormer(small(node_values=9)), "graphormer.tokens"),
}
PATH = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 4, 1, 3], [1, 0, 2, 1, 3, 2, 4, 3, 3, 1]])
PAIR = torch.tensor([[0, 1], [1, 0]])
BATCH = torch.tensor([0] * 5 + [1] * 2)
BOTH = torch.cat([PATH, PAIR + 5], 1)
X = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
IDS = torch.randint(1, 9, (7, 3), generator=torch.Generator().manual_seed(3))


def built(name: str, level: str = "graph") -> nn.Module:
    return shake(MODELS[name](level)).double()


def explainer(model: nn.Module, rules: Any = "exact", at: str = "inputs", **changes: Any) -> Explainer:
    settings = {"explanation_type": "model", "node_mask_type": "object", "model_config": MULTICLASS, **changes}
    return Explainer(model, RelevanceExplainer(rules, at), **settings)


PARTS = ("virtual_relevance", "position_relevance", "bias_relevance", "gap")


def added_up(one: Explanation) -> Tensor:
    """The sum of the parts of each explained output, whose inputs are those of the nodes."""
    torch.testing.assert_close(one.input_relevance.sum(), one.node_mask.sum(), rtol=1e-10, atol=1e-10)
    return one.input_relevance + sum(one[part] for part in PARTS if part in one)


class Ending(nn.Module):
    """Another model with something done to its output."""

    def __init__(self, model: nn.Module, ending: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.ending = model, ending

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.ending(self.model(x, edge_index))


MULTI_ENDINGS = {
    "probs": lambda out: out.softmax(-1),
    "log_probs": lambda out: torch.nn.functional.log_softmax(out, dim=-1),
}
