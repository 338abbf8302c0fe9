"""Graphs: nodes with features, edges, and their structure as inputs of a graph Transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import Error


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph without loops: `edges` contains both directions of every edge once."""

    nodes: np.ndarray
    """Features, nodes x features: numbers, or ids of an embedding that all features share, where 0 is padding."""
    edges: np.ndarray
    """The source and target node of each edge, 2 x edges."""
    edge_ids: np.ndarray | None = None
    """The type of each edge, from 1: 0 means no edge."""
    label: int | None = None
    name: str = ""
    names: tuple[str, ...] = ()
    """The names of the nodes; may be empty."""
    picture: Mapping[str, Any] | None = None
    """How nodes are drawn: `kind` "molecule" with its `smiles`, whose atoms are the nodes, or "superpixels" with an
    `image` as uint8 and the `regions` of its pixels, which are the nodes."""

    def __post_init__(self) -> None:
        nodes, edges = np.array(self.nodes), np.array(self.edges)
        ids = None if self.edge_ids is None else np.array(self.edge_ids)
        of = f" of {self.name!r}" if self.name else ""
        _check_nodes(nodes, f"nodes{of}")
        _check_edges(edges, len(nodes), f"edges{of}")
        if ids is not None:
            _check_ids(ids, edges.shape[1], f"edge_ids{of}")
        if self.label is not None and (isinstance(self.label, bool) or not isinstance(self.label, int | np.integer)):
            raise Error(f"label{of} is {self.label!r}: give the index of a class, or None.")
        if self.names and len(self.names) != len(nodes):
            raise Error(f"names{of} has {len(self.names)} for {len(nodes)} node(s): give one for each, or none.")
        if self.label is not None:
            object.__setattr__(self, "label", int(self.label))  # NumPy integers are not serialisable as JSON
        self._set("nodes", nodes.astype(np.float32 if nodes.dtype.kind == "f" else np.int64))
        self._set("edges", edges.astype(np.int32))  # to save memory: a dataset of images has tens of millions
        if ids is not None:
            self._set("edge_ids", ids.astype(np.int32))

    def _set(self, field: str, array: np.ndarray) -> None:
        array.flags.writeable = False
        object.__setattr__(self, field, array)

    def __len__(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True, eq=False)
class Structure:
    """The inputs of a graph Transformer that depend on the edges of a graph."""

    degrees: np.ndarray
    distances: np.ndarray
    """Lengths of shortest paths, nodes x nodes, clipped to `max_distance`; max_distance + 1 where there is no path."""
    paths: np.ndarray | None
    """Ids of the first edges on a shortest path, nodes x nodes x hops, padded with 0. None without edge ids."""


def structure(graph: Graph, max_distance: int = 19, max_hops: int = 5) -> Structure:
    """Return degrees, distances and the edges along shortest paths.

    Of several shortest paths, the one with the lowest node index at every step is chosen.
    """
    if not 1 <= max_distance <= 254:
        raise Error(f"max_distance={max_distance} is out of range: give 1 to 254.")
    if max_hops < 1:
        raise Error(f"max_hops={max_hops} is too small: give 1 or more.")
    source, _ = graph.edges
    exact = _distances(graph.edges, len(graph))
    distances = np.where(np.isinf(exact), max_distance + 1, np.minimum(exact, max_distance)).astype(np.uint8)
    degrees = np.bincount(source, minlength=len(graph))
    paths = None if graph.edge_ids is None else _paths(graph.edges, graph.edge_ids, exact, max_hops)
    return Structure(degrees, distances, paths)


def _distances(edges: np.ndarray, count: int) -> np.ndarray:
    """Return the lengths of shortest paths between all nodes, infinite where there is no path."""
    distances = np.full((count, count), np.inf)
    np.fill_diagonal(distances, 0.0)
    source, target = edges[:, np.argsort(edges[1], kind="stable")]
    starts = np.flatnonzero(np.diff(target, prepend=-1))
    reached, steps = distances == 0, 0
    while len(starts) and reached.any():  # breadth-first search from all nodes at once
        steps += 1
        adjacent = np.zeros_like(reached)
        adjacent[:, target[starts]] = np.logical_or.reduceat(reached[:, source], starts, axis=1)
        reached = adjacent & np.isinf(distances)
        distances[reached] = steps
    return distances


def _paths(edges: np.ndarray, ids: np.ndarray, exact: np.ndarray, hops: int) -> np.ndarray:
    count, none = len(exact), len(ids)
    paths = np.zeros((count, count, hops), np.uint8 if ids.max(initial=0) < 256 else np.int32)
    if not none:
        return paths
    order = np.lexsort((edges[1], edges[0]))
    source, target = edges[:, order]
    # For each edge and each final node: whether the edge leads nearer to it. The first such edge is chosen.
    nearer = exact[target] < exact[source]
    starts = np.flatnonzero(np.diff(source, prepend=-1))
    taken = np.full((count, count), none)
    taken[source[starts]] = np.minimum.reduceat(np.where(nearer, np.arange(none)[:, None], none), starts, axis=0)
    ids = np.append(ids[order], 0)
    end = np.arange(count)[None]
    at = np.broadcast_to(end.T, (count, count))
    for hop in range(hops):
        edge = taken[at, end]
        paths[..., hop] = ids[edge]
        at = np.where(edge < none, np.append(target, 0)[edge], at)
    return paths


def chosen(graph: Graph, kept: np.ndarray | Sequence[int]) -> np.ndarray:
    """Return a boolean mask of nodes, given a boolean mask or the indices of nodes."""
    given, size = np.asarray(kept), len(graph)
    if given.dtype == bool:
        if given.shape != (size,):
            raise Error(f"kept has the shape {given.shape}: give {size} booleans, one for each node.")
        return given
    if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
        raise Error(f"kept is {kept!r}: give {size} booleans, or the indices of nodes.")
    given = given.astype(np.int64)
    if ((given < 0) | (given >= size)).any():
        wrong = given[(given < 0) | (given >= size)][0]
        raise Error(f"kept has the node {wrong}: the graph has 0 to {size - 1}.")
    if len(set(given.tolist())) < len(given):
        raise Error(f"kept has a node twice: {given.tolist()}.")
    mask = np.zeros(size, bool)
    mask[given] = True
    return mask


def induced(graph: Graph, kept: np.ndarray | Sequence[int]) -> Graph:
    """Return the induced subgraph of nodes, in their order.

    It must have at least one node: to remove all nodes, mask them in `batch`.
    """
    mask = chosen(graph, kept)
    if not mask.any():
        raise Error("kept has no node: mask all nodes in a batch instead, with batch(..., kept=).")
    inside = mask[graph.edges].all(0)
    edges = (np.cumsum(mask) - 1)[graph.edges[:, inside]]
    ids = None if graph.edge_ids is None else graph.edge_ids[inside]
    names = tuple(name for name, is_kept in zip(graph.names, mask, strict=bool(graph.names)) if is_kept)
    return replace(graph, nodes=graph.nodes[mask], edges=edges, edge_ids=ids, names=names, picture=None)


def batch(
    graphs: Sequence[Graph],
    structures: Sequence[Structure],
    kept: Sequence[np.ndarray | Sequence[int]] | None = None,
) -> dict[str, Tensor]:
    """Return graphs as inputs of `conserva.models.graphormer`, padded to the largest.

    Parameters
    ----------
    graphs
        The graphs of the batch.
    structures
        Their structures, from `structure`.
    kept
        The nodes of each graph that are not masked, by default all; they keep the structure of the whole graph.
    """
    _check_batch(graphs, structures, kept)
    size, count = max(map(len, graphs)), len(graphs)
    first, paths = graphs[0].nodes, structures[0].paths
    values = torch.float32 if first.dtype.kind == "f" else torch.long
    tensors = {
        "nodes": torch.zeros(count, size, first.shape[1], dtype=values),
        "degrees": torch.zeros(count, size, dtype=torch.long),
        "distances": torch.zeros(count, size, size, dtype=torch.long),
        "attention_mask": torch.zeros(count, 1 + size, dtype=torch.bool),
    }
    if paths is not None:
        tensors["paths"] = torch.zeros(count, size, size, paths.shape[2], dtype=torch.long)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}  # views of the same memory
    for row, (graph, edges) in enumerate(zip(graphs, structures, strict=True)):
        n = len(graph)
        arrays["nodes"][row, :n] = graph.nodes
        arrays["degrees"][row, :n] = edges.degrees
        arrays["distances"][row, :n, :n] = edges.distances
        arrays["attention_mask"][row, 0] = True  # the virtual node
        arrays["attention_mask"][row, 1 : 1 + n] = True if kept is None else chosen(graph, kept[row])
        if edges.paths is not None:
            arrays["paths"][row, :n, :n] = edges.paths
    return tensors


# Checks of arguments.


def _check_nodes(nodes: np.ndarray, what: str) -> None:
    if nodes.ndim != 2 or nodes.dtype.kind not in "iuf":
        raise Error(f"{what} have the shape {nodes.shape} in {nodes.dtype}: give nodes x features, ids or numbers.")
    if not len(nodes):
        raise Error(f"{what} are empty: a graph has at least one.")
    if not nodes.shape[1]:
        raise Error(f"{what} have no feature: give at least one.")
    wrong = ~np.isfinite(nodes) if nodes.dtype.kind == "f" else nodes < 0
    if wrong.any():
        node, feature = np.argwhere(wrong)[0]
        wanted = "numbers must be finite" if nodes.dtype.kind == "f" else "ids must be 0 or more"
        raise Error(f"{what}[{node}, {feature}] is {nodes[node, feature]}: {wanted}.")


def _check_edges(edges: np.ndarray, size: int, what: str) -> None:
    if edges.ndim != 2 or edges.shape[0] != 2 or (edges.dtype.kind not in "iu" and edges.size):
        raise Error(f"{what} have the shape {edges.shape} in {edges.dtype}: give 2 x edges, the indices of nodes.")
    outside = ((edges < 0) | (edges >= size)).any(0)
    if outside.any():
        a, b = edges[:, outside][:, 0]
        raise Error(f"{what} have {a} to {b}: the graph has the nodes 0 to {size - 1}.")
    source, target = edges.astype(np.int64)
    if (source == target).any():
        raise Error(f"{what} lead from {source[source == target][0]} to itself: leave such edges out.")
    there, back = np.sort(source * size + target), np.sort(target * size + source)
    if (there[1:] == there[:-1]).any():
        a, b = divmod(int(there[1:][there[1:] == there[:-1]][0]), size)
        raise Error(f"{what} have {a} to {b} twice: give each direction once.")
    if (there != back).any():
        a, b = divmod(int(np.setdiff1d(there, back)[0]), size)
        raise Error(f"{what} have {a} to {b}, but not {b} to {a}: give both directions.")


def _check_ids(ids: np.ndarray, count: int, what: str) -> None:
    if ids.shape != (count,) or (ids.dtype.kind not in "iu" and ids.size):
        raise Error(f"{what} have the shape {ids.shape} in {ids.dtype}: give an integer for each of {count} edge(s).")
    if (ids < 1).any():
        raise Error(f"{what} have {ids.min()}: they start at 1, since 0 means no edge.")


def _check_batch(graphs: Sequence[Graph], structures: Sequence[Structure], kept: Sequence[object] | None) -> None:
    if not graphs:
        raise Error("graphs is empty: give at least one.")
    if len(structures) != len(graphs) or (kept is not None and len(kept) != len(graphs)):
        given = f"{len(structures)} structure(s)" + ("" if kept is None else f" and {len(kept)} kept")
        raise Error(f"{len(graphs)} graph(s) have {given}: give one for each.")
    kinds = {(graph.nodes.dtype.kind, graph.nodes.shape[1]) for graph in graphs}
    if len(kinds) > 1:
        raise Error("graphs have different features: in a batch, all nodes must have equally many ids, or numbers.")
    if len({None if each.paths is None else each.paths.shape[2] for each in structures}) > 1:
        raise Error(
            "structures have paths of different lengths, or only some have paths: use the same settings for all."
        )
    for row, (graph, edges) in enumerate(zip(graphs, structures, strict=True)):
        if len(edges.degrees) != len(graph):
            raise Error(f"structures[{row}] is of {len(edges.degrees)} node(s), graphs[{row}] has {len(graph)}.")
