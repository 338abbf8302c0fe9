"""Ledgers of a trained Graphormer under each rule set, in float64 (Ali et al. 2022, figure 3)."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from ...datasets.graph import Graph as GraphData
from ...engine.relevance import relevance
from ...evaluation.statistics import conservation
from ...tasks.graph import Graph
from .result import RuleLedger
from .rows import GRAPH_ROWS, RULES, method_of

POINTS = 200
"""How many graphs are points of the scatter plots."""

AT_ONCE = 32
"""Graphs in a batch."""


def ledgers_of(task: Graph, graphs: Sequence[GraphData]) -> tuple[RuleLedger, ...]:
    """Return the ledger of the true classes' logits under every rule set."""
    task = Graph(copy.deepcopy(task.model).double(), task.name)
    encoded = [task.encode(one) for one in graphs]
    targets = [one.label for one in graphs]
    found = []
    for rules in (method_of(GRAPH_ROWS, title) for title in RULES):
        entries: list[np.ndarray] = []
        for start in range(0, len(encoded), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            result = relevance(task.model, task.batch(encoded[part]), targets[part], rules=rules)
            scores, ledger = result.scores(), result.ledger
            assert ledger is not None
            columns = (result.output, scores[:, 1:].sum(1), scores[:, 0], ledger.biases, ledger.gap)
            entries.append(np.stack([one.cpu().numpy() for one in columns]))
        found.append(_ledger(rules, *np.concatenate(entries, axis=1)))
    return tuple(found)


def _ledger(
    rules: str, output: np.ndarray, nodes: np.ndarray, virtual: np.ndarray, biases: np.ndarray, gap: np.ndarray
) -> RuleLedger:
    sums = nodes + virtual
    kept = conservation(output, sums)
    sizes = {
        name: float(np.abs(one).mean())
        for name, one in (("nodes", nodes), ("virtual", virtual), ("biases", biases), ("gap", gap))
    }
    return RuleLedger(
        rules=rules,
        correlation=kept.correlation or 0.0,
        slope=kept.slope or 0.0,
        correlation_without_biases=conservation(output - biases, sums).correlation or 0.0,
        output=float(np.abs(output).mean()),
        **sizes,
        largest_gap=float(np.abs(gap).max()),
        outputs=tuple(output[:POINTS].tolist()),
        sums=tuple(sums[:POINTS].tolist()),
    )
