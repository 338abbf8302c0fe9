"""Graphs as batches of nodes, with their structure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...datasets.batched_structure import batched_structure
from ...datasets.graph import Graph
from ...errors import Error
from .samples import Batch, Samples

if TYPE_CHECKING:
    from ...models.graphormer import GraphormerConfig

AT_ONCE = 512
"""How many graphs' structures are computed together."""


@dataclass(frozen=True)
class GraphSamples(Samples):
    """All graphs of a split as padded tables of small integer types."""

    nodes: Tensor
    degrees: Tensor
    distances: Tensor
    paths: Tensor | None
    """None for a model without edges."""
    lengths: Tensor
    """The number of nodes of each graph, on the CPU."""
    sizes: Tensor
    """The same on the device of the model."""
    labels: Tensor

    stretch = 5  # with more, the same molecules would always be in one batch
    measured = 16384
    suspect = "numbers of the nodes"

    @classmethod
    def of(cls, graphs: Sequence[Graph], config: GraphormerConfig, device: torch.device) -> GraphSamples:
        """Compute the structure of graphs, and check all ids."""
        _check(graphs, config)
        lengths = torch.tensor([len(graph) for graph in graphs])
        count, size, features = len(graphs), int(lengths.max()), graphs[0].nodes.shape[1]
        ids = np.int16 if (config.node_values or 0) <= 2**15 else np.int32
        nodes = np.zeros((count, size, features), np.float32 if config.node_values is None else ids)
        for row, graph in enumerate(graphs):
            nodes[row, : len(graph)] = graph.nodes
        parts = [
            _structure(graphs[start : start + AT_ONCE], size, config, device) for start in range(0, count, AT_ONCE)
        ]
        degrees, distances, paths = zip(*parts, strict=True)
        return cls(
            torch.from_numpy(nodes).to(device),
            torch.cat(degrees),
            torch.cat(distances),
            None if config.edge_values is None else torch.cat(paths),
            lengths,
            lengths.to(device),
            torch.tensor([graph.label for graph in graphs], device=device),
        )

    def checked(self) -> AbstractContextManager[None]:
        from ...models.graphormer import trusted_ids

        return trusted_ids()

    def _batch(self, rows: Tensor) -> Batch:
        width = int(self.lengths[rows].max())
        where = rows.to(self.nodes.device, non_blocking=True)
        nodes = self.nodes[where, :width]
        places = torch.arange(1 + width, device=self.nodes.device)  # the virtual node, then the others
        inputs = {
            "nodes": nodes if nodes.is_floating_point() else nodes.long(),
            "degrees": self.degrees[where, :width].long(),
            "distances": self.distances[where, :width, :width].long(),
            "attention_mask": places <= self.sizes[where, None],
        }
        if self.paths is not None:
            inputs["paths"] = self.paths[where, :width, :width].long()
        return inputs, self.labels[where]


def _structure(
    graphs: Sequence[Graph], size: int, config: GraphormerConfig, device: torch.device
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return degrees, distances and paths in small types."""
    owner = np.repeat(np.arange(len(graphs)), [graph.edges.shape[1] for graph in graphs])
    source, target = np.concatenate([graph.edges for graph in graphs], 1).astype(np.int64)
    where = tuple(torch.from_numpy(index).to(device) for index in (owner, source, target))
    adjacency = torch.zeros(len(graphs), size, size, dtype=torch.bool, device=device)
    adjacency[where] = True
    ids = None
    if config.edge_values is not None:
        kind = torch.uint8 if config.edge_values <= 256 else torch.int32
        ids = torch.zeros(adjacency.shape, dtype=kind, device=device)
        found = np.concatenate([graph.edge_ids for graph in graphs if graph.edge_ids is not None])
        ids[where] = torch.from_numpy(found).to(device, kind)
    degrees, distances, paths = batched_structure(adjacency, ids, config.max_distance, config.max_hops)
    return degrees.to(torch.int16), distances, paths


def _check(graphs: Sequence[Graph], config: GraphormerConfig) -> None:
    """Raise an error unless a model with this configuration can read all graphs and their labels."""
    if not graphs:
        raise Error("graphs is empty: give one at least.")
    classes = int(config.num_labels or 0)
    for row, graph in enumerate(graphs):
        if graph.label is None or not 0 <= graph.label < classes:
            raise Error(f"graphs[{row}] ({graph.name!r}) has the label {graph.label}: give one of 0 to {classes - 1}.")
        if config.node_values is None:
            if graph.nodes.dtype.kind != "f" or graph.nodes.shape[1] != config.node_features:
                raise Error(
                    f"graphs[{row}] ({graph.name!r}) has nodes x features {graph.nodes.shape} in {graph.nodes.dtype}: "
                    f"a model with node_features={config.node_features} reads as many numbers a node."
                )
        elif graph.nodes.dtype.kind == "f" or graph.nodes.max() >= config.node_values:
            raise Error(
                f"graphs[{row}] ({graph.name!r}) has nodes up to {graph.nodes.max()} in {graph.nodes.dtype}: a model "
                f"with node_values={config.node_values} reads ids from 0 to {config.node_values - 1}."
            )
        if config.edge_values is not None and (
            graph.edge_ids is None or graph.edge_ids.max(initial=0) >= config.edge_values
        ):
            found = "no edge_ids" if graph.edge_ids is None else f"edge_ids up to {graph.edge_ids.max()}"
            raise Error(
                f"graphs[{row}] ({graph.name!r}) has {found}: a model with edge_values={config.edge_values} reads ids "
                f"from 1 to {config.edge_values - 1}."
            )
    if len({graph.nodes.shape[1] for graph in graphs}) > 1:
        raise Error("graphs have different numbers of features: give as many for every node.")
