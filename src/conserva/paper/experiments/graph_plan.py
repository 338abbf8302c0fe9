"""What the graph experiment of Ali et al. (2022) runs: rows of the tables, maskings, and how much of each dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...evaluation.protocol import EACH
from ...tasks.graph import MASKS
from ..training.recipe import Recipe
from .plan import SEEDS, Row

GRAPH_ROWS = (
    Row("Random", "random", "paper"),
    Row("A-Last", "a-last", "paper"),
    Row("A-Flow", "a-flow", "paper"),
    Row("Rollout", "rollout", "paper"),
    Row("GAE", "gae", "paper"),
    Row("GI", "gi", "paper"),
    Row("LRP (AH)", "ah", "paper"),
    Row("LRP (AH+LN)", "ah+ln", "paper"),
    Row("LRP (LN)", "ln", "more"),
    Row("exact", "exact", "more"),
    Row("AttnLRP", "attnlrp", "more"),
    Row("IG", "ig", "more"),
    Row("Chefer 2021", "chefer", "more"),
    Row("partial LRP", "partial-lrp", "more"),
    Row("Attn-GradCAM", "attn-gradcam", "more"),
    Row("leave-one-out", "leave-one-out", "yardstick"),
    Row("intensity", "intensity", "yardstick"),
)
"""Relevance is read at the tokens: a node's features and its degree, added up."""

GRAPH_OURS = "ah+ln"
"""The paper's own method."""

RULES = ("gi", "ah", "ln", "ah+ln", "exact")
"""The rule sets whose books are kept."""


@dataclass(frozen=True)
class GraphSlice:
    """How much of a dataset is evaluated: how many test graphs, drawn at random, and in how many steps nodes go."""

    count: int | None
    steps: int | str


SLICES: Mapping[str, GraphSlice] = {
    "bace": GraphSlice(None, EACH),
    "bace-random": GraphSlice(None, EACH),
    "mnist": GraphSlice(1000, 25),
}


@dataclass(frozen=True)
class GraphPlan:
    """One run of the experiment."""

    datasets: tuple[str, ...]
    seeds: tuple[int, ...] = SEEDS
    masks: tuple[str, ...] = MASKS
    device: str = "cpu"
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the model that are not the dataset's own, as pre_norm=False."""
    quick: bool = False
    """A small slice of everything, to see the whole path: the numbers mean nothing."""

    def methods(self) -> list[str]:
        """Return the methods to evaluate."""
        return [row.method for row in GRAPH_ROWS if row.group != "yardstick"]

    def slice(self, dataset: str) -> GraphSlice:
        """Return how much of a dataset is evaluated."""
        return GraphSlice(4, 5) if self.quick else SLICES[dataset]

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return a dataset's recipe as this run takes it."""
        return replace(recipe, epochs=2, learning_rate=1e-3) if self.quick else recipe

    def training_count(self) -> int | None:
        """Return how many graphs are trained on; None for all."""
        return 100 if self.quick else None
