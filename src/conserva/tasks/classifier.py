"""Base class of tasks with classifiers and regressors: labels and targets of their output heads."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from ..engine.targets import class_index, labels_of
from ..errors import Error
from .output_heads import BINARY, ORDINAL, ClassScores, OutputHead, configured_head, head_named
from .task import Task


class Classifier(Task):
    """A model with a classification or regression head, given by its configuration or by `head`."""

    takes_ordinal: ClassVar[bool] = False
    """Whether the task supports ordinal heads."""

    def __init__(self, model: nn.Module, name: str | None = None, head: str | None = None) -> None:
        super().__init__(model, name)
        self._head = None if head is None else head_named(head)
        if self._head is ORDINAL and not self.takes_ordinal:
            raise Error(f"head={head!r} is for text classifiers: {type(self).__name__} does not support it.")
        _ = self.head  # raises an error for an unknown configuration

    @property
    def head(self) -> OutputHead:
        """The given output head, or else the one that the configuration describes."""
        return self._head or configured_head(getattr(self.model, "config", None))

    @property
    def labels(self) -> dict[str, int]:
        """The labels and indices of the possible targets."""
        own = labels_of(self.model)
        if self.head is BINARY and len(own) == 2:  # the logit is that of the second class
            return {label: 0 for label, index in own.items() if index == 1}
        if isinstance(self.model, ClassScores) and len(own) != self.model.classes:  # names of thresholds
            return {str(index): index for index in range(self.model.classes)}
        return own

    def resolve_target(self, target: Any, encoded: Any) -> Any:
        """Return a target, as indices where the labels of the task differ from those of the configuration."""
        outputs = self.classes
        if target is None and not self.head.has_default(outputs):
            known = ", ".join(repr(self.target_name(None, index)) for index in range(outputs))
            raise Error(f"target=None: {self.name} has {outputs} outputs. Choose one of {known}.")
        if not isinstance(target, str):
            return target
        own = self.labels
        names = {**{self.head.shown(label, index, outputs): index for label, index in own.items()}, **own}
        if names == labels_of(self.model):  # `conserva.relevance` looks these up itself
            return target
        parts = [target] if target in names else target.split(" - ", 1)
        indices = [class_index(part, names) for part in parts]
        return indices[0] if len(indices) == 1 else " - ".join(map(str, indices))

    def target_name(self, target: Any, index: int | None) -> str:
        name = super().target_name(target, index)
        return name if isinstance(target, str) or index is None else self.head.shown(name, index, self.classes)
