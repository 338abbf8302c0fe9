"""What tests share: attention replicas."""

from __future__ import annotations

import networkx as nx
from networkx.algorithms.flow import edmonds_karp
from torch import Tensor

Maps = list[tuple[Tensor, Tensor]]
"""For each layer its map and the target's gradient for it, heads x queries x keys."""


def identity(n: int, i: int, j: int) -> float:
    return 1.0 if i == j else 0.0


def head_mean(attention: Tensor) -> list[list[float]]:
    heads, n, _ = attention.shape
    return [[sum(float(attention[h, i, j]) for h in range(heads)) / heads for j in range(n)] for i in range(n)]


def with_residual(matrix: list[list[float]]) -> list[list[float]]:
    n = len(matrix)
    joint = [[matrix[i][j] + identity(n, i, j) for j in range(n)] for i in range(n)]
    return [[value / sum(row) for value in row] for row in joint]


def product(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    return [[sum(x * b[k][j] for k, x in enumerate(row)) for j in range(len(b[0]))] for row in a]


def weighted(attention: Tensor, gradient: Tensor) -> list[list[float]]:
    return head_mean((attention * gradient).clamp(min=0))


def column_sums(matrix: list[list[float]]) -> list[float]:
    return [sum(row[j] for row in matrix) for j in range(len(matrix[0]))]


def a_last(maps: Maps, read: int) -> list[float]:
    return head_mean(maps[-1][0])[read]


def a_last_all(maps: Maps, read: int) -> list[float]:
    return column_sums(head_mean(maps[-1][0]))


def _rolled(maps: Maps) -> list[list[float]]:
    joint = None
    for attention, _ in maps:
        layer = with_residual(head_mean(attention))
        joint = layer if joint is None else product(layer, joint)
    return joint


def rollout(maps: Maps, read: int) -> list[float]:
    return _rolled(maps)[read]


def rollout_all(maps: Maps, read: int) -> list[float]:
    return column_sums(_rolled(maps))


def flows_from(maps: Maps, top: int) -> list[float]:
    """Return the maximum flows from one place above the layers to every input, by networkx."""
    n = maps[0][0].shape[-1]
    graph = nx.DiGraph()
    for level, (attention, _) in enumerate(maps):
        layer = with_residual(head_mean(attention))
        for i in range(n):
            for j in range(n):
                graph.add_edge((level + 1, i), (level, j), capacity=layer[i][j])
    source = (len(maps), top)
    return [nx.maximum_flow_value(graph, source, (0, j), flow_func=edmonds_karp) for j in range(n)]


def a_flow(maps: Maps, read: int) -> list[float]:
    return flows_from(maps, read % maps[0][0].shape[-1])


def a_flow_all(maps: Maps, read: int) -> list[float]:
    rows = [flows_from(maps, top) for top in range(maps[0][0].shape[-1])]
    return column_sums([[value / sum(row) for value in row] for row in rows])


def gae(maps: Maps, read: int) -> list[float]:
    n = maps[0][0].shape[-1]
    relevance = [[identity(n, i, j) for j in range(n)] for i in range(n)]
    for attention, gradient in maps:
        added = product(weighted(attention, gradient), relevance)
        relevance = [[relevance[i][j] + added[i][j] for j in range(n)] for i in range(n)]
    return [0.0 if j == read % n else value for j, value in enumerate(relevance[read])]


def gae_rollout(maps: Maps, read: int) -> list[float]:
    joint = None
    for attention, gradient in maps:
        layer = with_residual(weighted(attention, gradient))
        joint = layer if joint is None else product(layer, joint)
    joint[read][read] = 0.0
    return column_sums(joint)


def attn_gradcam(maps: Maps, read: int) -> list[float]:
    attention, gradient = maps[-1]
    heads, n, _ = attention.shape
    read %= n
    weights = [sum(float(gradient[h, read, j]) for j in range(n)) / n for h in range(heads)]
    row = [sum(weights[h] * float(attention[h, read, j]) for h in range(heads)) / heads for j in range(n)]
    return [max(value, 0.0) for value in row]


REPLICAS = {
    "a-last": a_last,
    "a-last:rows=all": a_last_all,
    "rollout": rollout,
    "rollout:rows=all": rollout_all,
    "a-flow": a_flow,
    "a-flow:rows=all": a_flow_all,
    "gae": gae,
    "gae:variant=rollout": gae_rollout,
    "attn-gradcam": attn_gradcam,
}
