"""What attention flow costs: against networkx on sentences of 20 tokens, and in seconds for one source of 256.

`python benchmarks/flow.py` prints the ratio of medians and the seconds, and writes benchmarks/results/flow.json.
The seconds stand for a limit that users feel (3 s on one core), so they are given beside the ratio.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
from networkx.algorithms.flow import edmonds_karp

from conserva.attribution.flow import attention_flow
from timing import medians, report

LAYERS = 3
SPREADS = (0.5, 1.5, 4.0)
LIMIT = 3.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--short", type=int, default=20, help="tokens of the sentence that networkx gets too")
    options.add_argument("--long", type=int, default=256, help="tokens of the sentence with one source")
    given = options.parse_args()

    rng = np.random.default_rng(0)
    kinds = [(spread, causal) for causal in (False, True) for spread in SPREADS]
    # One core is all it takes: neither numpy's part nor igraph runs in parallel. The last token sees every other.
    alone: dict[str, Callable[[], object]] = {
        f"{'causal' if causal else 'full'}, logits' std {spread}": one_source(
            attention(rng, given.long, spread, causal)
        )
        for spread, causal in kinds
    }
    seconds = medians(alone, given.rounds)
    print(f"Attention flow from one source, {LAYERS} layers, {given.long} tokens (seconds)")
    for name, one in seconds.items():
        print(f"  {name:<42} {one:5.2f}")

    layers = attention(rng, given.short, 1.5, causal=False)
    found: dict[str, np.ndarray] = {}

    def ours() -> None:
        found["ours"] = attention_flow(layers, range(given.short))

    def theirs() -> None:
        found["theirs"] = by_networkx(layers)

    pairs = medians({"conserva": ours, "networkx Edmonds-Karp": theirs}, given.rounds)
    np.testing.assert_allclose(found["ours"], found["theirs"], rtol=0, atol=1e-9)
    settings = {
        "layers": LAYERS,
        "tokens": given.short,
        "sources": given.short,
        "rounds": given.rounds,
        "one source": {"tokens": given.long, "limit in seconds": LIMIT, "seconds": seconds},
    }
    path = Path(__file__).parent / "results" / "flow.json"
    report("Attention flow, every pair of a sentence", pairs, "conserva", settings, path)


def attention(rng: np.random.Generator, tokens: int, spread: float, causal: bool) -> np.ndarray:
    """Return the softmax of normal logits, for each layer."""
    logits = rng.normal(0, spread, (LAYERS, tokens, tokens))
    if causal:
        logits[:, ~np.tri(tokens, dtype=bool)] = -np.inf
    weights = np.exp(logits)
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def one_source(layers: np.ndarray) -> Callable[[], object]:
    return lambda: attention_flow(layers, [layers.shape[1] - 1])


def by_networkx(layers: np.ndarray) -> np.ndarray:
    """Return the flows as the paper's released code finds them: one whole graph, a search in it for each pair."""
    tokens = layers.shape[1]
    graph = nx.DiGraph()
    for (level, i, j), capacity in np.ndenumerate(layers):
        graph.add_edge((level + 1, i), (level, j), capacity=float(capacity))

    def flow(s: int, t: int) -> float:
        return nx.maximum_flow_value(graph, (len(layers), s), (0, t), flow_func=edmonds_karp)  # type: ignore[no-any-return]

    return np.array([[flow(s, t) for t in range(tokens)] for s in range(tokens)])


if __name__ == "__main__":
    main()
