"""What an experiment of Ali et al. (2022) runs. Subclasses say what differs between texts and graphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...evaluation.protocol import EACH
from ...evaluation.result import Evaluation
from .result import AnyResult
from .rows import Row

if TYPE_CHECKING:
    from ...tasks.task import Task
    from ..training.classifier import Classifier
    from ..training.recipe import Recipe

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Slice:
    """How much of a dataset is evaluated."""

    count: int | None = None
    """How many samples of the test split, drawn at random; None for all."""
    tokens: int | None = None
    """How many tokens of a text; None for all that the classifier reads."""
    steps: int | str = EACH
    """In how many steps the nodes of a graph are added and removed."""


SLICES: Mapping[str, Slice] = {
    "imdb": Slice(count=400, tokens=256),  # 256 as in the paper's code; attention flow takes seconds a text
    "tweeteval-sentiment": Slice(count=2000),
    "mnist": Slice(count=1000, steps=25),
}
"""Dataset -> its slice, where that is not the whole test split."""


@dataclass(frozen=True)
class Plan(ABC):
    """One run of an experiment."""

    datasets: tuple[str, ...]
    seeds: tuple[int, ...] = SEEDS
    device: str = "cpu"
    quick: bool = False
    """Whether to take a small slice of everything, to try the whole path: the numbers mean nothing."""

    rows: ClassVar[tuple[Row, ...]]
    quick_slice: ClassVar[Slice]
    quick_count: ClassVar[int]
    """How many samples a quick run trains on."""

    def methods(self) -> list[str]:
        """Return the methods to evaluate."""
        return [row.method for row in self.rows if row.group != "yardstick"]

    def slice(self, dataset: str) -> Slice:
        """Return how much of a dataset is evaluated."""
        return self.quick_slice if self.quick else SLICES.get(dataset, Slice())

    def training_count(self) -> int | None:
        """Return how many samples are trained on; None for all."""
        return self.quick_count if self.quick else None

    @abstractmethod
    def classifier(self, dataset: str, reading: Callable[[int, int], None] | None = None) -> Classifier:
        """Return the classifier to train. Raise an error if the dataset is unknown."""

    @abstractmethod
    def recipe(self, classifier: Classifier) -> Recipe:
        """Return the recipe of a classifier in this run."""

    @abstractmethod
    def parts(self) -> tuple[str, ...]:
        """Return the names of the evaluations of each model, which are also the names of their folders."""

    @abstractmethod
    def task(self, model: Path, dataset: str) -> Task:
        """Return the trained classifier in a folder."""

    @abstractmethod
    def data(self, dataset: str) -> Any:
        """Return the test split, of which a slice is evaluated."""

    @abstractmethod
    def options(self, dataset: str, part: str) -> dict[str, Any]:
        """Return the options of an evaluation."""

    @abstractmethod
    def result(
        self,
        classifier: Classifier,
        model: Path,
        trained: Sequence[Mapping[str, Any]],
        evaluations: Mapping[str, Sequence[Evaluation]],
        pooled: Mapping[str, Evaluation],
    ) -> AnyResult:
        """Return the result of a dataset.

        Parameters
        ----------
        classifier
            What `classifier` returned for the dataset.
        model
            The folder of the first model.
        trained
            What each training wrote.
        evaluations
            Part -> the evaluation of each model.
        pooled
            Part -> the evaluation of the mean over models.
        """
