"""Tasks of models in memory: models and pipelines of transformers, and models of sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .._util.devices import float_dtype, usable_device
from ..errors import Error
from .detection import task_class_of_object
from .loading_checks import check_ids, refuse_head
from .pipeline_objects import PIPELINES, ZERO_SHOT, check_model, head_of, pipeline_class, refuse_options
from .sentence_objects import cross_encoder, sentence_encoder
from .task import Task
from .text import Text

TAKES = (
    "conserva.load takes a folder, a GGUF file, a name on the Hugging Face Hub, a bundled model, a transformers model "
    "with tokenizer=, a transformers pipeline, or a SentenceTransformer or CrossEncoder"
)


def task_of(model: Any, tokenizer: Any, labels: Sequence[str] | None, head: str | None) -> Task:
    """Return the task of a model in memory; `tokenizer` is only for models of transformers. Nothing is changed.

    Objects are recognised by the names of their classes, so that no other library is imported.
    """
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(model).__mro__}
    shown = f"model is of type {type(model).__name__}"
    if ("transformers", "PreTrainedModel") in bases:
        return _of_model(model, tokenizer, labels, head)
    if tokenizer is not None:
        raise Error(f"tokenizer is for a transformers model, but {shown}: leave it out. {TAKES}.")
    if ("transformers", "Pipeline") in bases:
        return _of_pipeline(model, labels, head)
    if any(library == "sentence_transformers" for library, _ in bases):
        names = {name for _, name in bases}
        if labels is not None:
            raise Error(f"labels={labels!r:.60} is for image models, but {shown}: leave it out.")
        if "CrossEncoder" in names:
            return cross_encoder(model, head)
        if "SentenceTransformer" in names and "SparseEncoder" not in names:
            return sentence_encoder(model, head)
    if isinstance(model, Task):
        raise Error(f"{shown}, which is a task already: use it as it is. {TAKES}.")
    if isinstance(model, nn.Module):
        raise Error(
            f"{shown}, which no task supports: {TAKES}. For another model, create the task, such as "
            "conserva.Text(model, tokenizer), or call conserva.relevance."
        )
    raise Error(f"{shown}: {TAKES}.")


def checked(task: Task, device: str | torch.device | None, dtype: str | torch.dtype | None) -> Task:
    """Return the task of a model in memory; raise an `Error` if another device or dtype than the model's was given."""
    check_ids(task, "model")
    weights = [weight for weight in task.model.parameters() if weight.is_floating_point()]
    if device is not None:
        wanted = usable_device(device, f"device={str(device)!r}")
        if wrong := {str(weight.device) for weight in weights if weight.device.type != wanted.type}:
            raise Error(
                f"device={str(device)!r}, but the model is on {', '.join(sorted(wrong))}, and a model in memory is not "
                "moved: move it yourself, with model.to(...), or leave the device out."
            )
    if dtype is not None and (wrong := {str(weight.dtype) for weight in weights if weight.dtype != float_dtype(dtype)}):
        raise Error(
            f"dtype={str(dtype)!r}, but the model has weights in {', '.join(sorted(wrong))}, and a model in memory is "
            "not converted: convert it yourself, with model.to(...), or leave the dtype out."
        )
    return task


def _of_model(model: Any, processor: Any, labels: Sequence[str] | None, head: str | None) -> Task:
    """Return the task of a model of transformers; `processor` is its tokenizer, a processor or a pipeline."""
    from .image import Image

    name = type(model).__name__
    task_class = task_class_of_object(model) if labels is None else Image
    kind = task_class.kind
    assert kind is not None
    refuse_head(task_class, head, f"the model, a {name},")
    if processor is None and task_class.needs_processor:
        raise Error(
            f"model is of type {name} ({kind.noun}) without a tokenizer: give it with the tokenizer, image processor "
            "or processor that belongs to it, as conserva.load(model, tokenizer=tokenizer)."
        )
    how: dict[str, Any] = {"head": head} if kind.classifies else {}
    if task_class is Image:
        how["labels"] = labels
    return task_class.from_objects(model, processor, **how)


def _of_pipeline(pipe: Any, labels: Sequence[str] | None, head: str | None) -> Task:
    """Return the task of a pipeline of transformers, with the output head that the pipeline applies."""
    kind = pipeline_class(pipe)
    if PIPELINES[kind] != "Image" and labels is not None:
        raise Error(
            f"labels={labels!r:.60} is for image models, but model is a pipeline for {pipe.task!r}: leave it out."
        )
    check_model(pipe, labels is not None)
    task = _of_model(pipe.model, pipe, labels, head_of(pipe) if head is None else head)
    refuse_options(pipe, task)
    if isinstance(task, Text) and kind == ZERO_SHOT:
        task.needs_pairs = True
    return task
