"""What every task is: it encodes inputs, names their features, takes some away, and knows the model's labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from torch import Tensor, nn

from ..datasets import Labelled
from ..errors import Error
from ..fingerprint import fingerprint
from ..targets import labels_of

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Encoded:
    """An input as the model sees it: its features, which of them are not its own, and what they belong to."""

    text: str
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    words: tuple[int | None, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def key(self) -> str:
        """What tells this input from others."""
        return self.text

    @property
    def fixed(self) -> tuple[bool, ...]:
        """Which features can never be taken away."""
        return (False,) * len(self)

    @property
    def picture(self) -> Mapping[str, Any] | None:
        """What the features are drawn on, as `Explanation.picture` has it."""
        return None

    def controls(self) -> dict[str, np.ndarray]:
        """Return scores that a method must beat and that need no model: name -> one for each feature."""
        return {}


class Rows(Protocol):
    """One input many times over, each time with other features taken away."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice | np.ndarray) -> Self: ...

    @property
    def width(self) -> int:
        """How many features the input has."""

    def keys(self) -> np.ndarray:
        """Return what a row is known by, rows x bytes: where it is equal, so is the model's answer."""


class Task(ABC):
    """A model, and how it is asked."""

    feature: ClassVar[str]
    """The model's input whose places are the features."""
    noun: ClassVar[str]
    """What an input is called in messages."""

    def __init__(self, model: nn.Module, name: str | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise Error(f"model={model!r} is no torch.nn.Module.")
        self.model = model.eval()
        self.name = name or getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights: the same for the same model, wherever it was loaded from."""
        return fingerprint(self.model)

    @property
    def labels(self) -> dict[str, int]:
        """The model's labels and their class indices."""
        return labels_of(self.model)

    @abstractmethod
    def is_one(self, given: Any) -> bool:
        """Return whether something is one input rather than a list of them."""

    @abstractmethod
    def labelled(self, data: Any) -> Labelled:
        """Return inputs with their labels, whatever they were given as."""

    @abstractmethod
    def encode(self, given: Any, *, truncate: bool = False) -> Any:
        """Return an input as the model sees it; one that the model cannot take is refused."""

    def encode_all(self, many: Sequence[Any], *, truncate: bool = False) -> list[Any]:
        """Return inputs as the model sees them."""
        return [self.encode(one, truncate=truncate) for one in many]

    def padded(self, length: int) -> int:
        """Return how many places an input of some length takes in a batch."""
        return length

    @abstractmethod
    def batch(self, encoded: Sequence[Any]) -> dict[str, Tensor]:
        """Put inputs side by side, padded to the longest."""

    @abstractmethod
    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        """Return what stands for features that are taken away: what was given, or the first preferred one there is."""

    @abstractmethod
    def masked(self, encoded: Any, kept: np.ndarray, mask: str) -> Rows:
        """Return an input with some features taken away: for each row those that are kept."""

    @abstractmethod
    def stack(self, parts: Sequence[Any]) -> dict[str, Tensor]:
        """Put what `masked` made of several inputs side by side, padded to the longest."""
