"""The figures of the graph experiment: curves under every masking, and sums of scores against logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..._util.text import displayed
from ...evaluation.result import Conservation, MethodResult
from ..experiments.findings import row_of
from ..experiments.graph_plan import GRAPH_OURS, GRAPH_ROWS
from ..experiments.graph_result import GraphResult
from .graph_columns import columns, steps_of
from .panels import draw_curve_rows, draw_scatter_rows

LINES = tuple(row for row in GRAPH_ROWS if row.group == "paper" or row.method in ("exact", "intensity"))
"""What is drawn as a curve: more lines than these cannot be told apart."""

SUMS = {row.method: row.title for row in GRAPH_ROWS if row.method in ("gi", GRAPH_OURS, "exact")}
"""What is drawn as a scatter plot, and its title."""


def draw_graph_curves(results: Sequence[GraphResult], path: str | Path) -> None:
    """Draw the activation and the pruning curves of every dataset under every masking, and save them."""
    results = displayed(results)
    rows = [(one.title, one.evaluation) for one in columns(results)]
    draw_curve_rows(rows, LINES, graph_curves_caption(results), path)


def draw_graph_books(results: Sequence[GraphResult], path: str | Path) -> None:
    """Draw the relevance of nodes and virtual node together against the logit, a point for each graph."""
    results = displayed(results)
    rows = [(one.title, [_sums(one, rules) for rules in SUMS]) for one in results]
    draw_scatter_rows(rows, list(SUMS.values()), books_caption(results), path)


def graph_curves_caption(results: Sequence[GraphResult]) -> str:
    """Say what the curves are, of which models."""
    steps = ", ".join(f"{one.title} {steps_of(one)}" for one in results)
    return (
        "Left: how the probability of the true class grows as nodes are shown; the higher, the better. Right: how far "
        "the logits move as nodes are removed; the lower, the better. Explained is the logit of the true class, by the "
        f"paper's methods, by the rule set exact, and by brightness where nodes have one. A row for each dataset and "
        f"masking. Means over test graphs with 95 % bands, {_models(results)}. Steps: {steps}."
    )


def books_caption(results: Sequence[GraphResult]) -> str:
    """Say what the points are, of which models."""
    seeds = ", ".join(dict.fromkeys(str(one.trained[0].seed) for one in results))
    most = max((len(each.sums) for one in results for each in one.books), default=0)
    return (
        "Relevance of all nodes and the virtual node together against the explained output, the logit of the true "
        "class, in float64; on the line both agree. By Gradient x Input, by the rule set ah+ln, and by exact, each "
        f"ending at the tokens. Points: at most {most} test graphs of a dataset, on the {_layers(results)}-layer "
        f"Graphormer of seed {seeds}. Correlation and slope: over all test graphs evaluated. Every y axis spans "
        "outputs and sums: scales differ."
    )


def _models(results: Sequence[GraphResult]) -> str:
    counts = sorted({len(one.trained) for one in results})
    many, layers = " or ".join(map(str, counts)), _layers(results)
    mean = f"of one {layers}-layer Graphormer" if counts == [1] else f"the mean of {many} {layers}-layer Graphormers"
    return f"{mean} for each dataset"


def _layers(results: Sequence[GraphResult]) -> str:
    return " or ".join(dict.fromkeys(str(one.shape["num_hidden_layers"]) for one in results))


def _sums(one: GraphResult, rules: str) -> MethodResult | None:
    """Return a rule set's result with the sums of its books, which know the virtual node and float64."""
    books = next((each for each in one.books if each.rules == rules), None)
    found = next((row for each in one.evaluations.values() if (row := row_of(each, rules))), None)
    if books is None or found is None:
        return None
    return replace(
        found, conservation=Conservation(books.correlation, books.slope, books.gap, books.outputs, books.sums)
    )
