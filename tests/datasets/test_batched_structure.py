"""The structure of many graphs at once is that of each graph alone."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import conserva
from conserva.datasets.batched_structure import batched_structure
from conserva.datasets.graph import Graph, induced, structure


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw a graph of up to nine nodes, connected or not, with an id for each direction of its edges."""
    size = draw(st.integers(1, 9))
    pairs = [(a, b) for a in range(size) for b in range(a)]
    there = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    return graph_of(size, list(itertools.compress(pairs, there)))


def graph_of(size: int, joined: list[tuple[int, int]]) -> Graph:
    edges = np.array([*joined, *((b, a) for a, b in joined)], dtype=int).reshape(-1, 2).T
    return Graph(np.ones((size, 1), int), edges, 1 + np.arange(edges.shape[1]))


def dense(given: list[Graph], extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return adjacency and ids, padded to the largest and by some nodes more that are not there."""
    size = max(map(len, given)) + extra
    adjacency = torch.zeros(len(given), size, size, dtype=torch.bool)
    ids = torch.full((len(given), size, size), 99, dtype=torch.uint8)  # where there is no edge nothing is read
    for row, graph in enumerate(given):
        source, target = torch.from_numpy(np.array(graph.edges)).long()
        adjacency[row, source, target] = True
        ids[row, source, target] = torch.from_numpy(np.array(graph.edge_ids)).to(torch.uint8)
    return adjacency, ids


def check(given: list[Graph], longest: int, hops: int, extra: int = 0) -> None:
    adjacency, ids = dense(given, extra)
    degrees, distances, paths = batched_structure(adjacency, ids, longest, hops)
    assert paths is not None
    alone = batched_structure(adjacency, None, longest, hops)
    assert alone[2] is None
    assert torch.equal(alone[0], degrees)
    assert torch.equal(alone[1], distances)
    assert (degrees.dtype, distances.dtype, paths.dtype) == (torch.long, torch.uint8, torch.uint8)
    for row, graph in enumerate(given):
        n, expected = len(graph), structure(graph, longest, hops)
        assert degrees[row, :n].tolist() == expected.degrees.tolist()
        assert distances[row, :n, :n].tolist() == expected.distances.tolist()
        assert paths[row, :n, :n].tolist() == expected.paths.tolist()
        # Nodes that are not there are alone.
        assert not degrees[row, n:].any()
        assert (
            distances[row, n:, n:] == torch.where(torch.eye(len(degrees[row]) - n, dtype=torch.bool), 0, longest + 1)
        ).all()
        assert (distances[row, :n, n:] == longest + 1).all()
        assert not paths[row, n:].any()
        assert not paths[row, :, n:].any()


@settings(deadline=None)
@given(st.lists(graphs(), min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2))
def test_each_graph_has_its_own_structure(given: list[Graph], longest: int, hops: int, extra: int) -> None:
    check(given, longest, hops, extra)


def chain(size: int) -> Graph:
    return graph_of(size, [(a, a + 1) for a in range(size - 1)])


def ladder(steps: int) -> Graph:
    """Return a ladder, which has many shortest paths, its nodes in no order."""
    names = np.random.default_rng(0).permutation(2 * steps)
    rails = [(a, a + 2) for a in range(2 * steps - 2)]
    return graph_of(
        2 * steps, [(int(names[a]), int(names[b])) for a, b in [*rails, *((a, a + 1) for a in range(0, 2 * steps, 2))]]
    )


@pytest.mark.parametrize("longest", [1, 2, 7, 19, 39, 40, 254])
@pytest.mark.parametrize(
    "given",
    {
        "far apart": [chain(41)],
        "far and near": [chain(41), chain(3), graph_of(5, [])],
        "many ways": [ladder(20), ladder(3)],
        "all joined": [graph_of(12, list(itertools.combinations(range(12), 2)))],
        "one node": [graph_of(1, [])],
    }.values(),
    ids=["far apart", "far and near", "many ways", "all joined", "one node"],
)
def test_long_and_dense_graphs(given: list[Graph], longest: int) -> None:
    check(given, longest, 5)


@settings(deadline=None)
@given(graphs(), st.data())
def test_a_mask_on_the_adjacency_is_the_induced_graph(graph: Graph, data: st.DataObject) -> None:
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(graph), max_size=len(graph))))
    kept[data.draw(st.integers(0, len(graph) - 1))] = True
    adjacency, ids = dense([graph])
    mask = torch.from_numpy(kept)
    degrees, distances, paths = batched_structure(adjacency & mask & mask[:, None], ids)
    assert paths is not None
    expected = structure(induced(graph, kept))
    assert degrees[0, mask].tolist() == expected.degrees.tolist()
    assert distances[0][mask][:, mask].tolist() == expected.distances.tolist()
    assert paths[0][mask][:, mask].tolist() == expected.paths.tolist()


def test_no_graphs_and_wide_ids() -> None:
    degrees, distances, paths = batched_structure(torch.zeros(0, 4, 4, dtype=torch.bool), torch.zeros(0, 4, 4).long())
    assert paths is not None
    assert (degrees.shape, distances.shape, paths.shape) == ((0, 4), (0, 4, 4), (0, 4, 4, 5))
    joined = torch.tensor([[[False, True], [True, False]]])
    paths = batched_structure(joined, torch.tensor([[[0, 70_000], [80_000, 0]]]), max_hops=2)[2]
    assert paths is not None
    assert paths.tolist() == [[[[0, 0], [70_000, 0]], [[80_000, 0], [0, 0]]]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adjacency": torch.zeros(2, 3, 4, dtype=torch.bool)}, r"adjacency has the shape \(2, 3, 4\)"),
        ({"adjacency": torch.zeros(2, 3, 3)}, "in torch.float32: give graphs x n x n booleans"),
        ({"edge_ids": torch.zeros(2, 3, 3)}, r"edge_ids has the shape \(2, 3, 3\) in torch.float32"),
        ({"edge_ids": torch.zeros(1, 3, 3).long()}, r"edge_ids has the shape \(1, 3, 3\)"),
        ({"max_distance": 0}, "max_distance=0 is out of range"),
        ({"max_distance": 255}, "max_distance=255 is out of range"),
        ({"max_hops": 0}, "max_hops=0 is too small"),
    ],
)
def test_what_is_no_batch_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(conserva.Error, match=message):
        batched_structure(**{"adjacency": torch.zeros(2, 3, 3, dtype=torch.bool), **changes})
