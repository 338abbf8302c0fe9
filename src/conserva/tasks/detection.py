"""Which task a model is for, by its configuration."""

from __future__ import annotations

from typing import Any

from .. import tasks
from ..errors import Error
from ..models.pretrained import json_of
from .model_kind import ModelKind
from .similarity import MODULES_FILE, Similarity
from .task import Task
from .text import Text

OWN_CLASSIFIERS = {"AttentionOnly"}
"""The text classifiers of this package, which are not in the mappings of transformers."""


def task_class_of(config: Any, source: str, name: str) -> type[Task]:
    """Return the class of the task of a model; raise an `Error` if there is none."""
    architectures = [str(architecture) for architecture in getattr(config, "architectures", None) or ()]
    if not any(architecture.endswith("ForSequenceClassification") for architecture in architectures) and (
        json_of(source, MODULES_FILE) is not None
    ):
        return Similarity
    kinds: dict[type[Task], ModelKind] = {
        task: task.kind for task in (getattr(tasks, name) for name in tasks.MODULES) if task.kind is not None
    }
    for task, kind in kinds.items():
        if task is Similarity:
            continue  # its architectures are encoders without a head, which other tasks have, too
        if set(architectures) & kind.architectures() or kind.auto in (getattr(config, "auto_map", None) or {}):
            return task
    if set(architectures) & OWN_CLASSIFIERS:
        return Text
    if not architectures:
        return Text  # configurations of old classifiers have none; missing weights are an error later
    known = ", ".join(kind.noun for kind in kinds.values())
    if hasattr(config, "vision_config") and hasattr(config, "text_config"):
        raise Error(
            f"model={name!r} is {' and '.join(architectures)}. If it compares images with texts, give the texts as "
            "labels: conserva.load(..., labels=['a cat', 'a dog'])."
        )
    raise Error(
        f"model={name!r} is {' and '.join(architectures)}, for which there is no task. It must be one of: {known}. "
        "Fine-tune it for one of these, or call conserva.relevance with the model itself."
    )
