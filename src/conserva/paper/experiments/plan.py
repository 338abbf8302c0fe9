"""What the text experiment of Ali et al. (2022) runs: rows of the tables, and how much of each dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..training.recipe import Recipe

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Row:
    """A row of the tables: its title, the method behind it, and whose it is."""

    title: str
    method: str
    group: str
    """`paper`: a method of tables 1 and 2; `slides`: of the authors' slides alone; `more`: of this project or another
    paper; `released`: what the authors' code computes under a name, where that is not its definition; `yardstick`."""


ROWS = (
    Row("Random", "random", "paper"),
    Row("A-Last", "a-last", "paper"),
    Row("A-Flow", "a-flow", "paper"),
    Row("Rollout", "rollout", "paper"),
    Row("GAE", "gae", "paper"),
    Row("GI", "gi:at=embeddings", "paper"),
    Row("LRP (AH)", "ah:at=embeddings", "paper"),
    Row("LRP (AH+LN)", "ah+ln:at=embeddings", "paper"),
    Row("LRP (LN)", "ln:at=embeddings", "slides"),
    Row("exact", "exact:at=embeddings", "more"),
    Row("AttnLRP", "attnlrp:at=embeddings", "more"),
    Row("IG", "ig", "more"),
    Row("Chefer 2021", "chefer", "more"),
    Row("partial LRP", "partial-lrp", "more"),
    Row("Attn-GradCAM", "attn-gradcam", "more"),
    Row("A-Last, all rows", "a-last:rows=all", "released"),
    Row("Rollout, all rows", "rollout:rows=all", "released"),
    Row("GAE as gradient rollout", "gae:variant=rollout", "released"),
    Row("LRP (AH), gamma .01", "ah:at=embeddings:gamma=0.01", "released"),
    Row("LRP (AH+LN), gamma .01", "ah+ln:at=embeddings:gamma=0.01", "released"),
    Row("leave-one-out", "leave-one-out", "yardstick"),
)
"""GI and LRP end where the paper lets them: at the output of the embedding block."""

GI, AH, LN, OURS, EXACT = (f"{rules}:at=embeddings" for rules in ("gi", "ah", "ln", "ah+ln", "exact"))
"""Methods that are spoken of by name; OURS is the paper's own."""

TITLE_OF = {row.method: row.title for row in ROWS}


@dataclass(frozen=True)
class Slice:
    """How much of a dataset is evaluated: how many test texts, drawn at random, and how many tokens of each."""

    count: int | None = None
    tokens: int | None = None


SLICES: Mapping[str, Slice] = {
    "imdb": Slice(count=400, tokens=256),  # 256 as in the paper's code; attention flow takes seconds a text
    "tweeteval-sentiment": Slice(count=2000),
}
"""Dataset -> its slice, where it is not all of its test split."""


@dataclass(frozen=True)
class Plan:
    """One run of the experiment."""

    datasets: tuple[str, ...]
    seeds: tuple[int, ...] = SEEDS
    embeddings: str = ""
    device: str = "cpu"
    as_released: bool = False
    quick: bool = False
    """A small slice of everything, to see the whole path: the numbers mean nothing."""

    def methods(self) -> list[str]:
        """Return the methods to evaluate."""
        return [row.method for row in ROWS if row.group != "yardstick"]

    def slice(self, dataset: str) -> Slice:
        """Return how much of a dataset is evaluated."""
        return Slice(count=6, tokens=32) if self.quick else SLICES.get(dataset, Slice())

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return a dataset's recipe as this run takes it."""
        return replace(recipe, epochs=2, tokens=32, learning_rate=1e-3) if self.quick else recipe  # type: ignore[call-arg]

    def training_count(self) -> int | None:
        """Return how many texts are trained on; None for all."""
        return 200 if self.quick else None
