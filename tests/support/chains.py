"""Datasets of small graphs: chains of nodes, of which one says the class."""

from __future__ import annotations

from typing import Any

import numpy as np

from conserva.datasets.graph import Graph
from conserva.datasets.graph_catalogue import GraphDataset

SHAPE = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "ffn_size": 8,
    "num_hidden_layers": 2,
    "max_distance": 4,
    "max_degree": 4,
    "max_hops": 3,
}
SIZES = {"train": 24, "validation": 12, "test": 10}


def made(split: str, numbers: bool = False) -> list[Graph]:
    """Return chains of two to seven nodes, of which one says the class."""
    draws = np.random.default_rng(list(SIZES).index(split))
    found = []
    for row in range(SIZES[split]):
        size, label = int(draws.integers(2, 8)), row % 2
        nodes = draws.integers(3, 9, (size, 2))
        nodes[draws.integers(size), 0] = 1 + label
        there = np.arange(size - 1)
        edges = np.concatenate([[there, there + 1], [there + 1, there]], 1)
        ids = None if numbers else draws.integers(1, 5, edges.shape[1])
        values = np.where(nodes < 3, 2.0 * nodes - 3, nodes / 20) if numbers else nodes
        found.append(Graph(values, edges, ids, label, f"{split} {row}"))
    return found


def reader(numbers: bool) -> Any:
    def read(split: str, folder: Any, count: int | None, seed: int, progress: Any) -> list[Graph]:
        return made(split, numbers)[:count]

    return read


LABELS = ("no", "yes")
IDS = GraphDataset(
    "chains", "Chains", LABELS, "roc_auc", {**SHAPE, "node_values": 9, "edge_values": 5}, SIZES, (), reader(False)
)
NUMBERS = GraphDataset("lines", "Lines", LABELS, "accuracy", {**SHAPE, "node_features": 2}, SIZES, (), reader(True))
