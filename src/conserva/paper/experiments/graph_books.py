"""Where logits go under each rule set, on trained models and in float64 (Ali et al. 2022, figure 3)."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from ...datasets.graph import Graph as GraphData
from ...engine.relevance import relevance
from ...evaluation.statistics import conservation
from ...tasks.graph import Graph
from .graph_plan import RULES
from .graph_result import BooksOfRules

POINTS = 200
"""How many graphs' points are kept for the scatter plots."""

AT_ONCE = 32


def books_of(task: Graph, graphs: Sequence[GraphData]) -> tuple[BooksOfRules, ...]:
    """Return the books of every rule set, of the true classes' logits."""
    task = Graph(copy.deepcopy(task.model).double(), task.name)
    encoded = [task.encode(one) for one in graphs]
    targets = [one.label for one in graphs]
    found = []
    for rules in RULES:
        entries: list[np.ndarray] = []
        for start in range(0, len(encoded), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            result = relevance(task.model, task.batch(encoded[part]), targets[part], rules=rules)
            scores, ledger = result.scores(), result.ledger
            assert ledger is not None
            columns = (result.output, scores[:, 1:].sum(1), scores[:, 0], ledger.biases, ledger.gap)
            entries.append(np.stack([one.cpu().numpy() for one in columns]))
        found.append(_books(rules, *np.concatenate(entries, axis=1)))
    return tuple(found)


def _books(
    rules: str, output: np.ndarray, nodes: np.ndarray, virtual: np.ndarray, biases: np.ndarray, gap: np.ndarray
) -> BooksOfRules:
    sums = nodes + virtual
    books = conservation(output, sums)
    sizes = {
        name: float(np.abs(one).mean())
        for name, one in (("nodes", nodes), ("virtual", virtual), ("biases", biases), ("gap", gap))
    }
    return BooksOfRules(
        rules=rules,
        correlation=books.correlation or 0.0,
        slope=books.slope or 0.0,
        correlation_without_biases=conservation(output - biases, sums).correlation or 0.0,
        output=float(np.abs(output).mean()),
        **sizes,
        largest_gap=float(np.abs(gap).max()),
        outputs=tuple(output[:POINTS].tolist()),
        sums=tuple(sums[:POINTS].tolist()),
    )
