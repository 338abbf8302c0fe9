"""Which task a model is for, by its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import tasks
from .._util.text import printable
from ..errors import Error
from ..models.pretrained import json_of
from .graph import Graph
from .model_kind import ModelKind
from .sentence_files import MODULES_FILE
from .similarity import Similarity
from .task import Task
from .text import Text

GRAPHS = "conserva-graphormer"
"""The `model_type` of graph classifiers."""

OWN: dict[str, type[Task]] = {"AttentionOnly": Text, "Graphormer": Graph}
"""The architectures of this package, which are not in the mappings of transformers, and their tasks."""


def task_class_of(config: Any, source: str, name: str) -> type[Task]:
    """Return the class of the task of a model in files; raise an `Error` if there is none."""
    architectures = [str(architecture) for architecture in getattr(config, "architectures", None) or ()]
    if not any(architecture.endswith("ForSequenceClassification") for architecture in architectures) and (
        json_of(source, MODULES_FILE) is not None
    ):
        return Similarity
    if getattr(config, "model_type", None) == GRAPHS:
        return Graph
    auto_map = getattr(config, "auto_map", None) or {}
    for task, kind in _kinds().items():
        if set(architectures) & kind.architectures() or kind.auto in auto_map:
            return task
    own = [OWN[architecture] for architecture in architectures if architecture in OWN]
    if own or not architectures:
        return own[0] if own else Text  # old classifiers have no architectures; missing weights are an error later
    raise _without_task(f"model={name!r}", architectures, config)


def task_class_of_object(model: Any) -> type[Task]:
    """Return the class of the task of a model in memory, by its class; raise an `Error` if there is none."""
    auto_map = getattr(model.config, "auto_map", None) or {}
    for name in (base.__name__ for base in type(model).__mro__):
        if name in OWN:
            return OWN[name]
        for task, kind in _kinds().items():
            if name in kind.architectures() or str(auto_map.get(kind.auto)).rpartition(".")[2] == name:
                return task
    raise _without_task("model", [type(model).__name__], model.config)


def _kinds() -> dict[type[Task], ModelKind]:
    """Return the tasks and the kinds of their models, except for `Similarity`, whose encoders are in others, too."""
    classes = (getattr(tasks, name) for name in tasks.MODULES)
    return {task: task.kind for task in classes if task.kind is not None and task is not Similarity}


def _without_task(given: str, architectures: Sequence[str], config: Any) -> Error:
    shown = f"{given} is {printable(' and '.join(architectures))}"
    if hasattr(config, "vision_config") and hasattr(config, "text_config"):
        return Error(
            f"{shown}. If it compares images with texts, give the texts as labels: "
            "conserva.load(..., labels=['a cat', 'a dog'])."
        )
    known = ", ".join([*(kind.noun for kind in _kinds().values()), "sentence encoder"])
    return Error(
        f"{shown}, which no task supports. Supported are: {known}. Fine-tune it for one of these, or call "
        "conserva.relevance with the model itself."
    )
