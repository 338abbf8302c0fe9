"""Graphs: degrees, distances, paths and sub-graphs as networkx finds them, and batches that hold all of it."""

import itertools

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import conserva
from conserva.datasets.graph import Graph, Structure, batch, chosen, induced, structure
from conserva.models.graphormer import Graphormer, GraphormerConfig


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw a graph of up to nine nodes, connected or not, its edges in any order and with ids of their own."""
    size = draw(st.integers(1, 9))
    pairs = [(a, b) for a in range(size) for b in range(a)]
    there = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    joined = list(itertools.compress(pairs, there))
    edges = draw(st.permutations([*joined, *((b, a) for a, b in joined)]))
    ids = 1 + np.arange(len(edges))
    nodes = draw(st.lists(st.integers(0, 20), min_size=size, max_size=size))
    return Graph(np.array(nodes)[:, None], np.array(edges, dtype=int).reshape(-1, 2).T, ids, 1, "drawn")


def reference(graph: Graph) -> nx.Graph:
    found = nx.Graph()
    found.add_nodes_from(range(len(graph)))
    found.add_edges_from(graph.edges.T.tolist())
    return found


def ring(size: int = 6, **changes: object) -> Graph:
    there = np.arange(size)
    edges = np.concatenate([[there, np.roll(there, -1)], [np.roll(there, -1), there]], 1)
    given = {"nodes": there[:, None] + 1, "edges": edges, "edge_ids": 1 + np.arange(2 * size)}
    return Graph(**(given | changes))  # type: ignore[arg-type]


@settings(deadline=None)
@given(graphs(), st.integers(1, 6))
def test_degrees_and_distances(graph: Graph, longest: int) -> None:
    found, expected = structure(graph, longest, 3), reference(graph)
    assert found.degrees.tolist() == [expected.degree(node) for node in range(len(graph))]
    lengths = dict(nx.all_pairs_shortest_path_length(expected))
    for a in range(len(graph)):
        for b in range(len(graph)):
            assert found.distances[a, b] == (min(lengths[a][b], longest) if b in lengths[a] else longest + 1)


@settings(deadline=None)
@given(graphs(), st.integers(1, 6))
def test_paths_are_the_first_shortest_ones(graph: Graph, hops: int) -> None:
    found, expected = structure(graph, max_hops=hops), reference(graph)
    assert found.paths is not None
    assert graph.edge_ids is not None
    ids = {(a, b): edge for (a, b), edge in zip(graph.edges.T.tolist(), graph.edge_ids.tolist(), strict=True)}
    for a in range(len(graph)):
        for b in range(len(graph)):
            path = min(nx.all_shortest_paths(expected, a, b)) if nx.has_path(expected, a, b) else []
            along = [ids[edge] for edge in itertools.pairwise(path)][:hops]
            assert found.paths[a, b].tolist() == along + [0] * (hops - len(along))


@settings(deadline=None)
@given(graphs(), st.data())
def test_induced_sub_graph(graph: Graph, data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.sampled_from(range(len(graph))), min_size=1, unique=True))
    found = induced(graph, kept)
    expected = nx.relabel_nodes(reference(graph).subgraph(kept), {old: new for new, old in enumerate(sorted(kept))})
    assert nx.utils.graphs_equal(reference(found), expected)
    assert found.nodes.tolist() == graph.nodes[sorted(kept)].tolist()
    assert (found.label, found.name) == (1, "drawn")
    assert graph.edge_ids is not None
    assert found.edge_ids is not None
    old = {(a, b): edge for (a, b), edge in zip(graph.edges.T.tolist(), graph.edge_ids.tolist(), strict=True)}
    for (a, b), edge in zip(found.edges.T.tolist(), found.edge_ids.tolist(), strict=True):
        assert edge == old[sorted(kept)[a], sorted(kept)[b]]
    assert induced(graph, chosen(graph, kept)).edges.tolist() == found.edges.tolist()


def test_of_two_shortest_paths_the_one_by_the_lowest_node() -> None:
    found = structure(ring())
    assert found.paths is not None
    assert found.paths[0, 3].tolist() == [1, 2, 3, 0, 0]  # by 1 and 2, not by 5 and 4
    assert found.paths[3, 0].tolist() == [9, 8, 7, 0, 0]  # back by 2 and 1, and these edges have ids of their own


def test_path_longer_than_the_hops_and_the_distances() -> None:
    size = 300
    there = np.arange(size - 1)
    edges = np.concatenate([[there, there + 1], [there + 1, there]], 1)
    found = structure(Graph(np.ones((size, 1)), edges, np.tile(there + 1, 2)))
    assert found.paths is not None
    assert found.paths[0, -1].tolist() == [1, 2, 3, 4, 5]
    assert found.paths[-1, 0].tolist() == [299, 298, 297, 296, 295]  # more than a byte holds
    assert found.distances[0, [18, 19, 20, 299]].tolist() == [18, 19, 19, 19]
    assert found.distances.dtype == np.uint8


def test_graph_without_edges() -> None:
    none = np.zeros((2, 0))
    found = structure(Graph(np.ones((2, 3)), none, np.zeros(0)), max_hops=4)
    assert found.distances.tolist() == [[0, 20], [20, 0]]
    assert found.paths is not None
    assert found.paths.shape == (2, 2, 4)
    assert not found.paths.any()
    assert structure(Graph(np.ones((1, 3)), none)).paths is None


def test_graph_is_its_own() -> None:
    nodes = np.ones((6, 2))
    graph = ring(nodes=nodes)
    nodes[:] = 7
    assert (graph.nodes == 1).all()
    assert graph.nodes.dtype == np.float32
    assert len(graph) == 6
    with pytest.raises(ValueError, match="read-only"):
        graph.edges[0, 0] = 3


def test_batch_is_padded_to_the_largest() -> None:
    given_graphs = [ring(3), ring(5)]
    structures = [structure(graph) for graph in given_graphs]
    tensors = batch(given_graphs, structures)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "nodes": (2, 5, 1),
        "degrees": (2, 5),
        "distances": (2, 5, 5),
        "attention_mask": (2, 6),
        "paths": (2, 5, 5, 5),
    }
    assert {name for name, tensor in tensors.items() if tensor.dtype == torch.long} == tensors.keys() - {
        "attention_mask"
    }
    assert tensors["attention_mask"].tolist() == [[True] * 4 + [False] * 2, [True] * 6]
    for row, (graph, its) in enumerate(zip(given_graphs, structures, strict=True)):
        n = len(graph)
        assert tensors["nodes"][row, :n].tolist() == graph.nodes.tolist()
        assert tensors["degrees"][row, :n].tolist() == its.degrees.tolist()
        assert tensors["distances"][row, :n, :n].tolist() == its.distances.tolist()
        assert its.paths is not None
        assert tensors["paths"][row, :n, :n].tolist() == its.paths.tolist()
    for name in ("nodes", "degrees", "distances", "paths"):
        assert not tensors[name][0, 3:].any()
    numbers = ring(nodes=np.ones((6, 3)), edge_ids=None)
    tensors = batch([numbers], [structure(numbers)])
    assert tensors["nodes"].dtype == torch.float32
    assert "paths" not in tensors


def test_batch_is_what_the_model_takes() -> None:
    model = Graphormer(GraphormerConfig(node_values=10, edge_values=20, num_labels=2)).eval()
    all_graphs = [ring(3), ring(6), Graph(np.array([[1], [2]]), np.zeros((2, 0)), np.zeros(0))]
    structures = [structure(graph) for graph in all_graphs]
    together = model(**batch(all_graphs, structures)).logits
    for row, (graph, its) in enumerate(zip(all_graphs, structures, strict=True)):
        alone = model(**batch([graph], [its])).logits[0]
        torch.testing.assert_close(together[row], alone, atol=1e-5, rtol=1e-5)
    empty = model(**batch(all_graphs, structures, kept=[[], [], []])).logits
    assert empty.isfinite().all()
    torch.testing.assert_close(empty[0], empty[1])


def test_batch_of_some_nodes() -> None:
    graph = ring()
    its = structure(graph)
    mask = batch([graph] * 3, [its] * 3, kept=[[0, 4], [], np.arange(6) > 2])["attention_mask"]
    assert mask.int().tolist() == [[1, 1, 0, 0, 0, 1, 0], [1, *[0] * 6], [1, 0, 0, 0, 1, 1, 1]]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nodes": np.zeros((0, 2))}, "empty: a graph has at least one"),
        ({"nodes": np.zeros((6, 0))}, "no feature"),
        ({"nodes": np.zeros(6)}, "shape (6,)"),
        ({"nodes": np.array([["a"]] * 6)}, "ids or numbers"),
        ({"nodes": np.array([[1.0, np.nan]] + [[1.0, 1.0]] * 5)}, "[0, 1] is nan"),
        ({"nodes": np.array([[1.0]] * 5 + [[np.inf]])}, "[5, 0] is inf"),
        ({"nodes": np.array([[-1]] + [[0]] * 5)}, "[0, 0] is -1: ids"),
        ({"nodes": np.ones((5, 1))}, "4 to 5: the graph has the nodes 0 to 4"),
        ({"edges": np.array([[0, -1], [-1, 0]])}, "0 to -1"),
        ({"edges": np.array([[0, 1]])}, "2 x edges"),
        ({"edges": np.array([[0.0, 1.0], [1.0, 0.0]])}, "float64"),
        ({"edges": np.array([[0, 1, 2], [1, 0, 2]])}, "from 2 to itself"),
        ({"edges": np.array([[0, 1, 0], [1, 0, 1]])}, "0 to 1 twice"),
        ({"edges": np.array([[0, 1, 4], [1, 0, 3]])}, "4 to 3, but not 3 to 4"),
        ({"edge_ids": np.ones(3, int)}, "each of 12 edge(s)"),
        ({"edge_ids": np.ones(12)}, "float64"),
        ({"edge_ids": np.arange(12)}, "have 0: they start at 1"),
        ({"label": 0.5}, "label of 'ring' is 0.5"),
        ({"label": True}, "label of 'ring' is True"),
    ],
)
def test_graphs_that_are_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(conserva.Error) as message:
        ring(name="ring", **changes)
    assert says in str(message.value)
    assert "'ring'" in str(message.value)


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ([], "no node"),
        ([6], "the node 6: the graph has 0 to 5"),
        ([-1], "the node -1"),
        ([2, 2], "twice"),
        (np.ones(5, bool), "give 6 booleans"),
        ([0.5], "indices of nodes"),
    ],
)
def test_nodes_that_cannot_be_kept(kept: list, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        induced(ring(), kept)


def test_structures_and_batches_that_are_refused() -> None:
    graph, its = ring(), structure(ring())
    without = structure(ring(edge_ids=None))
    for call, says in (
        (lambda: structure(graph, max_distance=0), "max_distance=0"),
        (lambda: structure(graph, max_distance=255), "1 to 254"),
        (lambda: structure(graph, max_hops=0), "max_hops=0"),
        (lambda: batch([], []), "graphs is empty"),
        (lambda: batch([graph], []), "0 structure"),
        (lambda: batch([graph], [its], kept=[]), "0 kept"),
        (lambda: batch([graph, ring(nodes=np.ones((6, 1)))], [its, its]), "different features"),
        (lambda: batch([graph, ring(nodes=np.ones((6, 2), int))], [its, its]), "different features"),
        (lambda: batch([graph, graph], [its, without]), "only some have paths"),
        (lambda: batch([graph, graph], [its, structure(graph, max_hops=2)]), "different lengths"),
        (lambda: batch([graph, graph], [its, structure(ring(5))]), "structures[1] is of 5 node(s), graphs[1] has 6"),
    ):
        with pytest.raises(conserva.Error) as message:
            call()
        assert says in str(message.value)


def test_structure_is_made_of_arrays() -> None:
    found = structure(ring())
    assert isinstance(found, Structure)
    assert found.degrees.shape == (6,)
    assert found.distances.shape == (6, 6)


@pytest.mark.parametrize("nodes", [1, 2, 7, 40])
def test_distances_are_those_of_networkx(nodes: int) -> None:
    import networkx as nx

    from conserva.datasets.graph import _distances

    rng = np.random.default_rng(nodes)
    for _ in range(20):
        drawn = nx.gnm_random_graph(nodes, int(rng.integers(0, 2 * nodes)), seed=int(rng.integers(2**31)))
        pairs = np.array([*drawn.edges, *((b, a) for a, b in drawn.edges)], dtype=int).reshape(-1, 2)
        found = _distances(pairs[rng.permutation(len(pairs))].T, nodes)
        for start, lengths in nx.all_pairs_shortest_path_length(drawn):
            expected = [lengths.get(end, np.inf) for end in range(nodes)]
            assert found[start].tolist() == expected
