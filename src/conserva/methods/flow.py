"""Attention flow (Abnar & Zuidema 2020): attention as pipes, and the most that runs from a token down to an input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import Error


def attention_flow(layers: Sequence[np.ndarray] | np.ndarray, sources: Sequence[int]) -> np.ndarray:
    """Return the maximum flow from each source, a token above the top layer, to every input token: (sources, tokens).

    The layers are square, ordered from the input to the top: row i holds the capacities of what query i takes.
    """
    matrices = _checked_layers(layers)
    chosen = _checked_sources(sources, len(matrices[0]))
    if len(matrices) == 1:
        return matrices[0][chosen]
    if len(matrices) == 2:
        bottom, top = matrices
        # Paths of two edges share no edge: each carries what its narrower edge lets through.
        return np.array([np.minimum(top[s][:, None], bottom).sum(0) for s in chosen]).reshape(len(chosen), len(top))
    return searched_flow(matrices, chosen)


def searched_flow(matrices: Sequence[np.ndarray], sources: Sequence[int]) -> np.ndarray:
    """Return the maximum flows by a search for each pair of a source and a sink: for two or more layers."""
    flows = np.zeros((len(sources), len(matrices[0])))
    network: _Network | None = None
    for i, s in enumerate(sources):
        reached = _reached(matrices, s)
        # Mostly all sources reach the same nodes, and one graph serves them; under a causal mask each has its own.
        if network is None or not np.array_equal(reached, network.reached):
            network = _Network(matrices, reached)
        flows[i] = network.flows(matrices[-1][s])
    return flows


class _Network:
    """The part of the graph that a source leads to, built once and searched for every sink.

    A pair's flow leaves by one row of the top layer and arrives by one column of the bottom layer: the graph holds no
    others, and only their capacities change from pair to pair.
    """

    def __init__(self, matrices: Sequence[np.ndarray], reached: np.ndarray) -> None:
        try:
            import igraph
        except ImportError as missing:
            raise Error("a-flow with three or more layers needs igraph: pip install 'conserva[flow]'.") from missing
        levels, tokens = reached.shape
        self.reached = reached
        self._source, self._sink = levels * tokens, levels * tokens + 1
        edges: list[tuple[int, int]] = []
        self._capacities: list[float] = []
        for k in range(1, levels):  # node j of level k, counted from the lowest, is k * tokens + j
            i, j = np.nonzero((matrices[k] > 0) & reached[k][:, None])
            edges += zip((k * tokens + i).tolist(), ((k - 1) * tokens + j).tolist(), strict=True)
            self._capacities += matrices[k][i, j].tolist()
        first, last = np.nonzero(reached[-1])[0], np.nonzero(reached[0])[0]
        self._row = slice(len(edges), len(edges) + len(first))
        self._column = slice(self._row.stop, self._row.stop + len(last))
        edges += [(self._source, (levels - 1) * tokens + j) for j in first.tolist()]
        edges += [(j, self._sink) for j in last.tolist()]
        self._capacities += [0.0] * (len(first) + len(last))
        self._columns = matrices[0][last].T.tolist()
        self._graph = igraph.Graph(n=self._sink + 1, edges=edges, directed=True)

    def flows(self, row: np.ndarray) -> list[float]:
        """Return the maximum flow to every sink from the source with that row in the top layer."""
        self._capacities[self._row] = row[self.reached[-1]].tolist()
        return [self._flow(column) if any(column) else 0.0 for column in self._columns]

    def _flow(self, column: list[float]) -> float:
        self._capacities[self._column] = column  # the many capacities between stay as they are
        return float(self._graph.maxflow_value(self._source, self._sink, self._capacities))


def _reached(matrices: Sequence[np.ndarray], source: int) -> np.ndarray:
    """Return which nodes a source leads to: a row for each level between the layers, the lowest first."""
    found = [matrices[-1][source] > 0]
    for matrix in matrices[-2:0:-1]:
        found.append((matrix[found[-1]] > 0).any(0))
    return np.array(found[::-1])


def _checked_layers(layers: Sequence[np.ndarray] | np.ndarray) -> list[np.ndarray]:
    """Return the layers as float64, or say what is wrong with them."""
    matrices = [np.asarray(layer, dtype=np.float64) for layer in layers]
    if not matrices:
        raise Error("layers is empty: attention flow needs the attention of one layer or more.")
    tokens = len(matrices[0]) if matrices[0].ndim else 0
    for k, matrix in enumerate(matrices):
        if matrix.shape != (tokens, tokens):
            shapes = ", ".join(str(one.shape) for one in matrices)
            raise Error(f"layers have the shapes {shapes}: attention flow needs one square matrix of each, all alike.")
        if not np.isfinite(matrix).all() or (matrix < 0).any():
            i, j = np.argwhere(~np.isfinite(matrix) | (matrix < 0))[0]
            raise Error(f"layers[{k}][{i}, {j}] is {matrix[i, j]}: capacities are finite, and zero or more.")
    return matrices


def _checked_sources(sources: Sequence[int], tokens: int) -> list[int]:
    """Return the sources as plain integers, or say which is not a token."""
    for s in sources:
        if isinstance(s, bool) or not isinstance(s, (int, np.integer)) or not 0 <= s < tokens:
            raise Error(f"sources={list(sources)!r}: {s!r} is not the index of a token, 0 to {tokens - 1}.")
    return [int(s) for s in sources]
