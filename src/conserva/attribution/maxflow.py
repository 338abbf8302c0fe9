"""Maximum flows between the tokens of attention layers, by igraph.

It is also a script that reads pickled jobs from standard input and writes pickled flows to standard output. It does not
import the package, so that a worker process starts quickly.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence

import igraph
import numpy as np


def searched_flow(matrices: Sequence[np.ndarray], sources: Sequence[int]) -> np.ndarray:
    """Return the maximum flows through two or more layers, by a search for each pair of a source and a sink."""
    flows = np.zeros((len(sources), len(matrices[0])))
    network: _Network | None = None
    for i, s in enumerate(sources):
        reached = _reached(matrices, s)
        # Usually all sources reach the same nodes and share a graph; under a causal mask each source has its own.
        if network is None or not np.array_equal(reached, network.reached):
            network = _Network(matrices, reached)
        flows[i] = network.flows(matrices[-1][s])
    return flows


class _Network:
    """The part of the graph that is reachable from a source, built once and searched for every sink.

    The flow of a pair uses one row of the top layer and one column of the bottom layer: of these two layers the graph
    has only one row and one column, whose capacities are replaced for each pair.
    """

    def __init__(self, matrices: Sequence[np.ndarray], reached: np.ndarray) -> None:
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
        """Return the maximum flow to every sink from the source with a given row in the top layer."""
        self._capacities[self._row] = row[self.reached[-1]].tolist()
        return [self._flow(column) if any(column) else 0.0 for column in self._columns]

    def _flow(self, column: list[float]) -> float:
        self._capacities[self._column] = column  # the capacities of all inner layers stay the same
        return float(self._graph.maxflow_value(self._source, self._sink, self._capacities))


def _reached(matrices: Sequence[np.ndarray], source: int) -> np.ndarray:
    """Return a mask of the nodes that a source reaches: a row for each level between layers, from the lowest."""
    levels = [matrices[-1][source] > 0]
    for matrix in matrices[-2:0:-1]:
        levels.append((matrix[levels[-1]] > 0).any(0))
    return np.array(levels[::-1])


if __name__ == "__main__":
    given = pickle.load(sys.stdin.buffer)
    pickle.dump([searched_flow(matrices, sources) for matrices, sources in given], sys.stdout.buffer)
