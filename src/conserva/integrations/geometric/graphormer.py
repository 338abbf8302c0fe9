"""Graphormer with inputs of PyTorch Geometric: nodes and edges of several graphs, concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.utils import to_dense_batch  # type: ignore[import-untyped]

from ...datasets.graph import Graph, Structure, structure
from ...datasets.graph import batch as padded
from ...errors import Error
from ...models.graphormer import Graphormer


class SparseGraphormer(nn.Module):
    """A `conserva.models.graphormer.Graphormer` that is called as `model(x, edge_index, batch=..., edge_attr=...)`.

    Degrees, distances and the edges along shortest paths are computed from the edges, and cached for recent graphs.
    """

    virtual_name = "graphormer.tokens.virtual"

    def __init__(self, graphormer: Graphormer) -> None:
        super().__init__()
        if not isinstance(graphormer, Graphormer):
            raise Error(f"graphormer is {type(graphormer).__name__}: give a conserva.models.graphormer.Graphormer.")
        self.graphormer = graphormer
        self.train(graphormer.training)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        batch: Tensor | None = None,
        edge_attr: Tensor | None = None,
        kept: Tensor | None = None,
    ) -> Tensor:
        """Return the logits, graphs x classes.

        Parameters
        ----------
        x
            Nodes x features: ids, or numbers.
        edge_index
            Source and target of each edge, 2 x edges, with both directions of every edge.
        batch
            The index of each node's graph, in ascending order; by default there is one graph.
        edge_attr
            The type of each edge, from 1, if the model uses edge types.
        kept
            A boolean for each node, by default true. Other nodes are masked, and have no effect; the rest keep their
            degrees, distances and paths.
        """
        sizes = sizes_of(len(x), batch)
        config = self.graphormer.config
        if int(sizes.max()) > config.max_nodes:
            raise Error(
                f"A graph has {int(sizes.max())} nodes, the Graphormer takes {config.max_nodes}: give smaller ones, or "
                "train a model with a larger max_nodes."
            )
        limits = (config.max_distance, config.max_hops)
        ids = edge_attr if config.edge_values is not None else None
        graphs = _graphs(sizes.tolist(), edge_index, ids)
        tensors = padded(graphs, [_structure(len(graph), *_key(graph), *limits) for graph in graphs])
        inputs = {name: value.to(x.device) for name, value in tensors.items() if name != "nodes"}
        nodes, real = to_dense_batch(x, batch)
        if kept is not None:
            if kept.dtype != torch.bool or kept.shape != (len(x),):
                raise Error(f"kept is {tuple(kept.shape)} in {kept.dtype}: give {len(x)} booleans, one for each node.")
            inputs["attention_mask"][:, 1:][real] = kept
        logits: Tensor = self.graphormer(nodes=nodes, **inputs).logits
        return logits


def sizes_of(count: int, batch: Tensor | None) -> Tensor:
    """Return the number of nodes of each graph."""
    if batch is None:
        return torch.tensor([count])
    if batch.shape != (count,) or batch.is_floating_point():
        raise Error(f"batch is {tuple(batch.shape)} in {batch.dtype}: give {count} integers, the graph of each node.")
    if bool((batch[1:] < batch[:-1]).any()):
        raise Error("batch is not in ascending order: the nodes of each graph must be consecutive.")
    sizes = torch.bincount(batch)
    if not bool(sizes.all()):
        raise Error(f"batch has no node of graph {int((sizes == 0).nonzero()[0])}: a graph has at least one.")
    return sizes


def _graphs(sizes: Sequence[int], edge_index: Tensor, ids: Tensor | None) -> list[Graph]:
    """Return the edges of each graph, as a graph without features."""
    edges, ends = edge_index.detach().cpu().numpy(), np.cumsum(sizes)
    if edges.ndim != 2 or edges.shape[0] != 2 or (edges.size and not 0 <= edges.min() <= edges.max() < ends[-1]):
        raise Error(f"edge_index has shape {edges.shape}: give 2 x edges, between the nodes 0 to {ends[-1] - 1}.")
    numbers = None if ids is None else _integers(ids, edges.shape[1])
    owner = np.searchsorted(ends, edges, side="right")
    if (owner[0] != owner[1]).any():
        a, b = edges[:, owner[0] != owner[1]][:, 0]
        raise Error(f"edge_index has {a} to {b}, which are nodes of different graphs by `batch`.")
    graphs = []
    for number, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        mine = owner[0] == number
        own_ids = None if numbers is None else numbers[mine]
        graphs.append(Graph(np.zeros((size, 1), np.int64), edges[:, mine] - (end - size), own_ids))
    return graphs


def _integers(ids: Tensor, count: int) -> np.ndarray:
    if ids.is_floating_point() or ids.numel() != count:
        raise Error(
            f"edge_attr is {tuple(ids.shape)} in {ids.dtype}: give the id of each of the {count} edge(s), from 1."
        )
    return ids.detach().reshape(-1).cpu().numpy()


def _key(graph: Graph) -> tuple[bytes, bytes | None]:
    return graph.edges.tobytes(), None if graph.edge_ids is None else graph.edge_ids.tobytes()


@lru_cache(maxsize=1024)
def _structure(size: int, edges: bytes, ids: bytes | None, max_distance: int, max_hops: int) -> Structure:
    numbers = None if ids is None else np.frombuffer(ids, np.int32)
    graph = Graph(np.zeros((size, 1), np.int64), np.frombuffer(edges, np.int32).reshape(2, -1), numbers)
    return structure(graph, max_distance, max_hops)
