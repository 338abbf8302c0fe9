"""Attention flow, against the maximum flow that networkx finds in the whole graph."""

import os
from collections.abc import Sequence

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from networkx.algorithms.flow import edmonds_karp

import conserva
from conserva.attribution import flow
from conserva.attribution.flow import attention_flow, attention_flows
from conserva.attribution.maxflow import searched_flow

CLOSE = {"rtol": 0, "atol": 1e-9}


def slow_flow(layers: Sequence[np.ndarray], sources: Sequence[int]) -> np.ndarray:
    """Edmonds-Karp for every pair, on every node and every edge."""
    tokens = len(layers[0])
    graph = nx.DiGraph()
    graph.add_nodes_from((level, i) for level in range(len(layers) + 1) for i in range(tokens))
    for level, matrix in enumerate(layers):
        for (i, j), capacity in np.ndenumerate(matrix):
            graph.add_edge((level + 1, i), (level, j), capacity=float(capacity))
    top = len(layers)
    return np.array([
        [nx.maximum_flow_value(graph, (top, s), (0, t), flow_func=edmonds_karp) for t in range(tokens)] for s in sources
    ])  # fmt: skip


def attention(kind: str, depth: int, tokens: int) -> np.ndarray:
    """Random attention of a kind, the same at every call."""
    rng = np.random.default_rng([depth, tokens])
    scores = rng.normal(0, 2, (depth, tokens, tokens))
    if kind == "causal":
        scores[:, ~np.tri(tokens, dtype=bool)] = -np.inf
    weights = np.exp(scores)
    weights /= weights.sum(-1, keepdims=True)
    if kind == "sparse":
        weights *= rng.random(weights.shape) < 0.4  # rows and columns of nothing but zeros among them
    if kind == "residual":
        weights = (weights + np.eye(tokens)) / 2
    return weights


@pytest.mark.parametrize("kind", ["full", "causal", "sparse", "residual"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("tokens", [2, 3, 5, 8])
def test_equals_edmonds_karp(kind: str, depth: int, tokens: int) -> None:
    layers = attention(kind, depth, tokens)
    sources = [tokens - 1, 0, tokens // 2]
    np.testing.assert_allclose(attention_flow(layers, sources), slow_flow(layers, sources), **CLOSE)


@st.composite
def few_layers(draw: st.DrawFn) -> np.ndarray:
    """One to four layers of two to four tokens, with many zeros, ties, and capacities from tiny to large."""
    depth, tokens = draw(st.integers(1, 4)), draw(st.integers(2, 4))
    capacity = st.sampled_from([0.0, 0.0, 1e-12, 0.1, 0.25, 0.5, 1.0, 3.0]) | st.floats(0, 10)
    return draw(arrays(np.float64, (depth, tokens, tokens), elements=capacity))


@settings(max_examples=150, deadline=None)
@given(few_layers())
def test_equals_edmonds_karp_on_any_capacities(layers: np.ndarray) -> None:
    sources = range(layers.shape[1])
    found = attention_flow(layers, sources)
    np.testing.assert_allclose(found, slow_flow(layers, sources), **CLOSE)
    assert (found <= np.minimum(layers[-1].sum(1)[:, None], layers[0].sum(0)) + 1e-9).all()


@pytest.mark.parametrize("kind", ["full", "causal", "sparse", "residual"])
def test_two_layers_need_no_search(kind: str) -> None:
    layers = attention(kind, 2, 12)
    np.testing.assert_allclose(attention_flow(layers, range(12)), searched_flow(layers, range(12)), **CLOSE)


@pytest.mark.parametrize("depth", [3, 5])
@pytest.mark.parametrize("kind", ["full", "causal", "residual"])
def test_no_more_flows_than_leaves_and_arrives(kind: str, depth: int) -> None:
    layers = attention(kind, depth, 30)
    found = attention_flow(layers, range(30))
    assert (found <= np.minimum(layers[-1].sum(1)[:, None], layers[0].sum(0)) + 1e-9).all()
    if kind == "causal":
        assert (found[~np.tri(30, dtype=bool)] == 0).all()
        assert (found[np.tri(30, dtype=bool)] > 0).all()


def test_layers_that_pass_everything_on_change_nothing() -> None:
    (layer,) = attention("full", 1, 6)
    for layers in ([layer, np.eye(6), np.eye(6)], [np.eye(6), layer, np.eye(6)], [np.eye(6), np.eye(6), layer]):
        np.testing.assert_allclose(attention_flow(layers, range(6)), layer, **CLOSE)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_sources_in_any_order_and_number(depth: int) -> None:
    layers = attention("sparse", depth, 5)
    whole = attention_flow(layers, range(5))
    assert whole.dtype == np.float64
    np.testing.assert_array_equal(attention_flow(list(layers), [3, 0, 3]), whole[[3, 0, 3]])
    np.testing.assert_array_equal(attention_flow(layers, np.array([1])), whole[[1]])
    assert attention_flow(layers, []).shape == (0, 5)


def test_what_is_given_stays_as_it_is() -> None:
    layers = attention("full", 1, 4)
    attention_flow(layers, [0])[:] = 7
    np.testing.assert_array_equal(layers, attention("full", 1, 4))


@pytest.mark.parametrize("sources", [[4], [-1], [0, 9], [1.0], ["0"], [True]])
def test_sources_out_of_range(sources: list) -> None:
    with pytest.raises(conserva.Error, match=r"sources=.*is not the index of a token; these are 0 to 3"):
        attention_flow(attention("full", 3, 4), sources)


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ([], "layers is empty"),
        ([np.ones((2, 3))], r"\(2, 3\)"),
        ([np.ones((2, 2)), np.ones((3, 3))], r"\(2, 2\), \(3, 3\)"),
        (np.ones((2, 2)), r"\(2,\), \(2,\)"),
        (np.ones(2), r"\(\), \(\)"),
        ([np.eye(2), np.array([[1, 0], [-0.5, 1]])], r"layers\[1\]\[1, 0\] is -0.5"),
        ([np.array([[1, np.nan], [0, 1]])], r"layers\[0\]\[0, 1\] is nan"),
        ([np.array([[1, 0], [0, np.inf]])], r"layers\[0\]\[1, 1\] is inf"),
    ],
)
def test_layers_that_are_no_attention(layers: list, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        attention_flow(layers, [0])


def test_processes_share_long_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    samples = [[rng.random((n, n)) for _ in range(depth)] for n, depth in ((5, 3), (4, 2), (6, 4))]
    sources = [[0, 3, 4], [1], [5]]
    alone = attention_flows(samples, sources)
    monkeypatch.setattr(flow, "WORTH_SHARING", 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    started: list[object] = []
    monkeypatch.setattr(flow, "_started", lambda jobs, start=flow._started: started.append(jobs) or start(jobs))
    for one, shared in zip(alone, attention_flows(samples, sources), strict=True):
        np.testing.assert_array_equal(one, shared)
    assert len(started) == 2


def test_a_process_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "WORTH_SHARING", 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(flow.pickle, "dump", lambda jobs, to: to.write(b"no pickle"))
    with pytest.raises(conserva.Error, match="searches attention flows failed with exit code 1"):
        attention_flow([np.ones((4, 4))] * 3, [0])


def test_more_than_two_layers_need_igraph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "find_spec", lambda name: None)
    with pytest.raises(conserva.Error, match=r"needs igraph: pip install 'conserva\[flow\]'"):
        attention_flow(attention("dense", 3, 4), [0])
    assert attention_flow(attention("dense", 2, 4), [0]).shape == (1, 4)
    found = conserva.compare(conserva.load(), "a joy.", methods=["exact", "a-flow"])
    assert found.methods == ("exact",)
    assert "needs igraph" in found.refused["a-flow"]
