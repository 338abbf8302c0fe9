"""What every task is: it encodes inputs, names their features, takes some away, and knows the model's labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from .._util.devices import usable_device
from ..datasets import Labelled
from ..engine.targets import labels_of
from ..errors import Error, NotApplicable
from .fingerprint import fingerprint
from .output_heads import SINGLE_LABEL, OutputHead
from .reading import Reading, refuse_training

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
    def parts(self) -> tuple[int, ...]:
        """How many of the features belong to each of the task's inputs, in their order."""
        return (len(self),)

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

    @property
    def sections(self) -> tuple[tuple[str, int], ...]:
        """What the parts are called and how many features each has, as `Explanation.sections` has it."""
        return ()

    @property
    def sink(self) -> int | None:
        """Which feature is a language model's first token, as `Explanation.sink` has it."""
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
    """A model, and how it is asked.

    Examples
    --------
    >>> task = conserva.load()
    >>> task.noun, list(task.labels)
    ('text', ['negative', 'positive'])
    """

    features: ClassVar[tuple[str, ...]]
    """The model's inputs whose places are the features, one after the other."""
    noun: ClassVar[str]
    """What an input is called in messages."""

    def __init__(self, model: nn.Module, name: str | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise Error(f"model={model!r} is not a torch.nn.Module.")
        refuse_training(model)
        self.model = model
        own = getattr(getattr(model, "config", None), "name_or_path", "")
        self.name = name or own or type(self.network).__name__

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device, such as "cuda", and return the task."""
        self.model.to(usable_device(device, f"device={str(device)!r}"))
        return self

    def __repr__(self) -> str:
        devices = {str(one.device) for one in self.network.parameters()}
        where = f", device={min(devices)!r}" if len(devices) == 1 else ""
        return f"{type(self).__name__}({self.name!r}, model={type(self.network).__name__}{where})"

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights: the same for the same model, wherever it was loaded from."""
        return fingerprint(self.network)

    @property
    def preprocessors(self) -> Mapping[str, Any]:
        """What turns inputs into numbers before the model sees them, by name."""
        tokenizer = getattr(self, "tokenizer", None)
        return {} if tokenizer is None else {"tokenizer": tokenizer}

    @property
    def options(self) -> Mapping[str, Any]:
        """The settings of the task itself that decide its numbers."""
        return {}

    @property
    def network(self) -> nn.Module:
        """The model itself, where the task reads it through something of its own."""
        return self.model.network if isinstance(self.model, Reading) else self.model

    @property
    def head(self) -> OutputHead:
        """What the logits say: those of a vocabulary, or of the answers in a context, are one label of several."""
        return SINGLE_LABEL

    @property
    def classes(self) -> int:
        """How many classes the model has; 0 where it does not tell."""
        return len(self.labels) or int(getattr(getattr(self.model, "config", None), "num_labels", 0))

    def aim(self, target: Any, encoded: Any) -> Any:
        """Return a target of the user's as `conserva.relevance` takes it, for one input."""
        return target

    def named(self, target: Any, index: int | None) -> str:
        """Return what a target is called, given the class that it is, if it is one."""
        if isinstance(target, str):
            return target
        if index is None:
            return getattr(target, "__name__", str(target))
        return {i: label for label, i in self.labels.items()}.get(index, str(index))

    def titled(self, target: Any, index: int | None, encoded: Any) -> str:
        """Return what a target is called for one input, where its own words may say it."""
        return self.named(target, index)

    @property
    def labels(self) -> Mapping[str, int]:
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

    def joined(self, inputs: Mapping[str, Tensor], scores: Mapping[str, Tensor]) -> Tensor:
        """Return the scores of all inputs' places side by side; refuse them where they are not those of the features.

        Which of them are an input's own, `own` says.
        """
        for name in self.features:
            if name not in scores or scores[name].shape != inputs[name].shape[:2]:
                there = " and ".join(f"{tuple(one.shape)} for {place}" for place, one in scores.items())
                raise NotApplicable(
                    f"The scores have shape {there}, but {name} of a {self.noun} has {tuple(inputs[name].shape[:2])}: "
                    f"{type(self.network).__name__} attends over other places than its features."
                )
        return torch.cat([scores[name] for name in self.features], 1)

    def own(self, encoded: Encoded, inputs: Mapping[str, Tensor]) -> np.ndarray:
        """Return where among the scores of `joined` those of one input stand: pads may lie between its parts."""
        widths = np.cumsum([0, *(inputs[name].shape[1] for name in self.features)])
        return np.concatenate([first + np.arange(n) for first, n in zip(widths, encoded.parts, strict=False)])

    @abstractmethod
    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        """Return what stands for features that are taken away: what was given, or the first preferred one there is."""

    @abstractmethod
    def masked(self, encoded: Any, kept: np.ndarray, mask: str) -> Rows:
        """Return an input with some features taken away: for each row those that are kept."""

    @abstractmethod
    def stack(self, parts: Sequence[Any]) -> dict[str, Tensor]:
        """Put what `masked` made of several inputs side by side, padded to the longest."""
