"""The base class of all tasks: encoding, batching and masking of inputs, and the labels of the model."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from .._util.devices import usable_device
from ..datasets import Labelled
from ..engine.targets import labels_of
from ..errors import Error, NotApplicable
from ..models.pretrained import part_of
from .fingerprint import fingerprint
from .model_kind import ModelKind
from .output_heads import SINGLE_LABEL, OutputHead
from .reading import Reading, refuse_training

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Encoded:
    """An encoded input: its features, and the words that they belong to."""

    text: str
    tokens: tuple[str, ...]
    """The names of the features."""
    special: tuple[bool, ...]
    """Which features are not part of the user's input, as in `Explanation.special`."""
    words: tuple[int | None, ...]
    """The index of the word that each feature belongs to, as in `Explanation.words`."""
    unknown: tuple[bool, ...] = field(default=(), kw_only=True)
    """Which features are the tokenizer's unknown token, as in `Explanation.unknown`; empty if none is."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def parts(self) -> tuple[int, ...]:
        """The number of features of each of the task's inputs, in order."""
        return (len(self),)

    @property
    def key(self) -> str:
        """A string that identifies this input among others."""
        return self.text

    @property
    def offsets(self) -> tuple[tuple[int, int] | None, ...]:
        """The start and end characters of each feature in `text`, as in `Explanation.offsets`."""
        return (None,) * len(self)

    @property
    def fixed(self) -> tuple[bool, ...]:
        """Which features can never be removed."""
        return (False,) * len(self)

    @property
    def picture(self) -> Mapping[str, Any] | None:
        """What to draw the features on, as in `Explanation.picture`."""
        return None

    @property
    def sections(self) -> tuple[tuple[str, int], ...]:
        """The name and the number of features of each part, as in `Explanation.sections`."""
        return ()

    @property
    def sink(self) -> int | None:
        """The index of the attention sink, a language model's first token."""
        return None

    def controls(self) -> dict[str, np.ndarray]:
        """Return baseline scores that are computed without the model, by name, with one score per feature."""
        return {}


class Rows(Protocol):
    """Copies of one input, each with other features removed."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice | np.ndarray) -> Self: ...

    @property
    def width(self) -> int:
        """The number of features of the input."""

    def keys(self) -> np.ndarray:
        """Return the cache keys of the rows, rows x bytes: rows with equal keys have equal logits."""


def require_task(task: Any) -> None:
    """Raise an error unless something is a task."""
    if not isinstance(task, Task):
        given = f"task={task!r}" if isinstance(task, str) else f"task is a {type(task).__name__}"
        raise Error(
            f"{given}, which is not a task: load one with conserva.load(...), or make one of a model in memory, as by "
            "conserva.Text(model, tokenizer)."
        )


class Task(ABC):
    """A model with its preprocessing: the base class of `conserva.Text`, `conserva.Causal` and so on.

    Examples
    --------
    >>> task = conserva.load()
    >>> task.noun, list(task.labels)
    ('text', ['negative', 'positive'])
    """

    features: ClassVar[tuple[str, ...]]
    """The names of the model's inputs whose positions are the features, in order."""
    noun: ClassVar[str]
    """The name of an input in error messages."""
    takes_windows: ClassVar[bool] = False
    """Whether long inputs can be explained in windows: the task has `longest` and `encode_whole`."""
    needs_processor: ClassVar[bool] = True
    """Whether a model in memory needs a tokenizer or processor to become a task."""
    kind: ClassVar[ModelKind | None] = None
    """How `conserva.load` recognises and loads the models of the task; None if it does not."""

    def __init__(self, model: nn.Module, name: str | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise Error(f"model={model!r} is not a torch.nn.Module.")
        refuse_training(model)
        self.model = model
        own = getattr(getattr(model, "config", None), "name_or_path", "")
        self.name = name or own or type(self.network).__name__

    @classmethod
    def from_files(cls, model: nn.Module, source: str, options: Mapping[str, Any], name: str, **how: Any) -> Self:
        """Return the task of a loaded model, with what else its files contain: by default the tokenizer.

        Parameters
        ----------
        model
            The model.
        source
            The folder or the name on the Hub that it was loaded from.
        options
            The options of loading, such as `trust_remote_code`.
        name
            The name of the model in results.
        how
            Options of the task.
        """
        return cls(model, part_of("AutoTokenizer", source, options), name=name, **how)  # type: ignore[misc]

    @classmethod
    def from_objects(cls, model: nn.Module, processor: Any, name: str | None = None, **how: Any) -> Self:
        """Return the task of a model in memory.

        Parameters
        ----------
        model
            The model.
        processor
            Its tokenizer, or an object with it as an attribute: a processor or a pipeline.
        name
            The name of the model in results.
        how
            Options of the task.
        """
        return cls(model, getattr(processor, "tokenizer", processor), name=name, **how)  # type: ignore[misc]

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device, such as "cuda", and return the task."""
        self.model.to(usable_device(device, f"device={str(device)!r}"))
        return self

    def __repr__(self) -> str:
        devices = {str(parameter.device) for parameter in self.network.parameters()}
        where = f", device={min(devices)!r}" if len(devices) == 1 else ""
        return f"{type(self).__name__}({self.name!r}, model={type(self.network).__name__}{where})"

    @property
    def special_ids(self) -> dict[str, int]:
        """The ids of the tokens that a method may take as a baseline, by name: "mask" and "pad"."""
        tokenizer = getattr(self, "tokenizer", None)
        ids = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("mask", "pad")}
        return {name: number for name, number in ids.items() if number is not None}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights, independent of where they were loaded from."""
        return fingerprint(self.network)

    @property
    def preprocessors(self) -> Mapping[str, Any]:
        """The tokenizer, image processor or the like, by name."""
        tokenizer = getattr(self, "tokenizer", None)
        return {} if tokenizer is None else {"tokenizer": tokenizer}

    @property
    def options(self) -> Mapping[str, Any]:
        """The settings of the task that affect its results."""
        return {}

    @property
    def network(self) -> nn.Module:
        """The model itself; `model` may be a wrapper around it that returns logits."""
        return self.model.network if isinstance(self.model, Reading) else self.model

    @property
    def head(self) -> OutputHead:
        """How the logits are interpreted. The default is a softmax over classes or over a vocabulary."""
        return SINGLE_LABEL

    @property
    def classes(self) -> int:
        """The number of classes; 0 if the model does not define it."""
        return len(self.labels) or int(getattr(getattr(self.model, "config", None), "num_labels", 0))

    def resolve_target(self, target: Any, encoded: Any) -> Any:
        """Convert the user's target for one input to a target of `conserva.relevance`."""
        return target

    def target_name(self, target: Any, index: int | None) -> str:
        """Return the display name of a target; `index` is its class, or None if it is not a single class."""
        if isinstance(target, str):
            return target
        if index is None:
            return getattr(target, "__name__", str(target))
        return {i: label for label, i in self.labels.items()}.get(index, str(index))

    def target_title(self, target: Any, index: int | None, encoded: Any) -> str:
        """Return the display name of a target for one input, which may use words of the input."""
        return self.target_name(target, index)

    @property
    def labels(self) -> Mapping[str, int]:
        """The model's labels and their class indices."""
        return labels_of(self.model)

    @abstractmethod
    def is_single(self, given: Any) -> bool:
        """Return whether an argument is a single input rather than a list of inputs."""

    def as_input(self, given: Any) -> Any:
        """Convert another form of an input to the one that `is_single` accepts; return others unchanged."""
        return given

    @abstractmethod
    def labelled(self, data: Any) -> Labelled:
        """Load inputs with their labels from any of the supported forms: a file, a dataset name, a list."""

    @abstractmethod
    def encode(self, given: Any, *, truncate: bool = False) -> Any:
        """Encode an input; raise an error if the model cannot take it."""

    def encode_all(self, many: Sequence[Any], *, truncate: bool = False) -> list[Any]:
        """Encode several inputs."""
        return [self.encode(item, truncate=truncate) for item in many]

    @property
    def longest(self) -> int:
        """The maximum number of features of an input."""
        return sys.maxsize

    def encode_whole(self, many: Sequence[Any]) -> list[Any]:
        """Encode inputs of any length, which are split into windows."""
        raise NotImplementedError

    def padded(self, length: int) -> int:
        """Return the number of positions that an input with `length` features takes in a batch."""
        return length

    @abstractmethod
    def batch(self, encoded: Sequence[Any]) -> dict[str, Tensor]:
        """Collate encoded inputs to a batch, padded to the longest."""

    def feature_scores(self, inputs: Mapping[str, Tensor], scores: Mapping[str, Tensor]) -> Tensor:
        """Concatenate the scores of the model's inputs along the positions.

        `feature_positions` gives the columns of each sample's features. Raises `NotApplicable` if the shapes do not
        match the inputs.

        Parameters
        ----------
        inputs
            The batch.
        scores
            Samples x positions for each of the inputs in `features`.
        """
        for name in self.features:
            if name not in scores or scores[name].shape != inputs[name].shape[:2]:
                shapes = " and ".join(f"{tuple(x.shape)} for {key}" for key, x in scores.items())
                raise NotApplicable(
                    f"The scores have shape {shapes}, but {name} of a {self.noun} has {tuple(inputs[name].shape[:2])}: "
                    f"{type(self.network).__name__} attends over other positions than its features."
                )
        return torch.cat([scores[name] for name in self.features], 1)

    def feature_positions(self, encoded: Encoded, inputs: Mapping[str, Tensor]) -> np.ndarray:
        """Return the columns of the result of `feature_scores` that hold one sample's features, without padding."""
        widths = np.cumsum([0, *(inputs[name].shape[1] for name in self.features)])
        return np.concatenate([first + np.arange(n) for first, n in zip(widths, encoded.parts, strict=False)])

    @abstractmethod
    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        """Return the name of the masking: the given one, or the first of the preferred ones that the task supports."""

    @abstractmethod
    def masked(self, encoded: Any, kept: np.ndarray, mask: str) -> Rows:
        """Return copies of an input with features removed; `kept` is rows x features, True where a feature stays."""

    @abstractmethod
    def stack(self, parts: Sequence[Any]) -> dict[str, Tensor]:
        """Collate the results of `masked` for several inputs to a batch, padded to the longest."""
