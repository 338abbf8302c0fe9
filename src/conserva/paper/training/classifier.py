"""What differs between the classifiers of texts and of graphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from .recipe import Recipe
from .samples import Samples

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass
class Prepared:
    """A model before its training, and the samples of each split."""

    model: PreTrainedModel
    splits: Mapping[str, Samples]
    """The first one is trained on; one named "validation" is measured after every epoch, "test" at the end."""
    provenance: Mapping[str, str]
    """The versions of the packages."""
    tokenizer: PreTrainedTokenizerBase | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are known only after loading; part of the result."""
    state_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that only a state on disk has to agree with."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of the result."""


class Classifier(ABC):
    """A dataset, and the model that is trained on it."""

    samples: ClassVar[str]
    """What the samples are called in the result: "texts" or "graphs"."""
    saved_every: ClassVar[float]
    """Seconds between two states on disk."""
    dataset: str
    """The name of the dataset."""
    title: str
    """How tables call the dataset."""
    labels: tuple[str, ...]
    """The names of the classes."""
    metric: str
    """What the best epoch is found by: "accuracy" or "roc_auc"."""

    @abstractmethod
    def recipe(self) -> Recipe:
        """Return the dataset's own recipe."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the settings of the model, which are part of the result. Raise an error if they make no sense."""

    @abstractmethod
    def prepare(self, recipe: Recipe, seed: int, count: int | None, device: torch.device) -> Prepared:
        """Build the model and read the data."""
