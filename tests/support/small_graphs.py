"""What tests share: small graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from conserva.models.graphormer import Graphormer, GraphormerConfig
from tiny import shake

FAR = 3  # max_distance: one more is "no path"


Graph = tuple[int, dict[tuple[int, int], int]]


# A tail of five edges, longer than the distances and hops of the tables; two parts, one a ring; a node alone.
GRAPHS: list[Graph] = [
    (6, {(0, 1): 1, (1, 2): 2, (2, 3): 3, (3, 4): 4, (4, 5): 1}),
    (5, {(0, 1): 4, (1, 2): 2, (0, 2): 3, (3, 4): 1}),
    (1, {}),
]


def small(**changes: object) -> Graphormer:
    settings = {"hidden_size": 12, "num_attention_heads": 3, "ffn_size": 10, "max_degree": 1, "max_hops": 2}
    labels = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    torch.manual_seed(0)
    config = GraphormerConfig(**{**settings, "max_distance": FAR, **labels, **changes})
    return shake(Graphormer(config), 0.4).double()  # type: ignore[return-value]


def arrays(graph: Graph, numbers: bool) -> dict[str, Tensor]:
    """One graph, by breadth-first search from each node."""
    count, edges = graph
    types = {**edges, **{(j, i): kind for (i, j), kind in edges.items()}}
    distances = torch.full((1, count, count), FAR + 1)
    paths = torch.zeros(1, count, count, 4, dtype=torch.long)
    for start in range(count):
        found, waiting = {start: []}, [start]
        while waiting:
            i = waiting.pop(0)
            for j in range(count):
                if (i, j) in types and j not in found:
                    found[j] = [*found[i], types[i, j]]
                    waiting.append(j)
        for end, path in found.items():
            distances[0, start, end] = min(len(path), FAR)
            paths[0, start, end, : len(path)] = torch.tensor(path[:4], dtype=torch.long)
    random = torch.Generator().manual_seed(count)
    nodes = torch.randint(1, 9, (1, count, 3), generator=random)
    nodes = nodes.double().log() - 1 if numbers else nodes
    degrees = torch.tensor([[sum(i == node for i, _ in types) for node in range(count)]])
    there = torch.ones(1, 1 + count, dtype=torch.bool)
    return {"nodes": nodes, "degrees": degrees, "distances": distances, "paths": paths, "attention_mask": there}


def padded(numbers: bool, size: int = 7, filled_with: int = 0) -> dict[str, Tensor]:
    """All graphs as one batch."""
    batch: dict[str, list[Tensor]] = {}
    for graph in GRAPHS:
        for name, one in arrays(graph, numbers).items():
            places = {"distances": 2, "paths": 2}.get(name, 1)
            filling, virtual = (0, 1) if name == "attention_mask" else (filled_with, 0)
            full = one.new_full((1, *[size + virtual] * places, *one.shape[1 + places :]), filling)
            full[(0, *[slice(graph[0] + virtual)] * places)] = one[0]
            batch.setdefault(name, []).append(full)
    return {name: torch.cat(rows) for name, rows in batch.items()}
