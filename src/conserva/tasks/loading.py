"""`conserva.load`: load a model as the task that its configuration names."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from .._util.devices import float_dtype, usable_device
from .._util.files import check_readable, exists, expanded
from ..errors import Error
from ..models.bundled import BUNDLED, BUNDLED_MODELS
from ..models.gguf import Progress, load_gguf
from ..models.hub import did_you_mean, hub_source
from ..models.pretrained import config_of, model_of, reading
from .causal import Causal
from .detection import task_class_of
from .image import load_image
from .loading_checks import check_ids, refuse_head
from .model_objects import checked, task_of
from .task import Task

GGUF = ".gguf"
"""The suffix of files that contain a language model with its configuration and tokenizer."""


def load(
    model: Any = BUNDLED,
    *,
    tokenizer: Any = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    labels: Sequence[str] | None = None,
    head: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Task:
    """Load a model as the task that its configuration names, or make the task of a model in memory.

    The tasks are: classification of texts, images or graphs, text generation, translation, transcription, token
    classification, question answering, masked language modelling, and sentence similarity. Only safetensors and GGUF
    weights are read from files.

    Parameters
    ----------
    model
        A folder, a GGUF file, a name on the Hugging Face Hub, or a bundled model: "sentiment", "digits", "bace" or
        "mnist". Or an object: a model of transformers with `tokenizer`, a `pipeline` of transformers, or a
        `SentenceTransformer` or `CrossEncoder` of sentence-transformers. An object is explained as it is: it must be in
        evaluation mode, and is not copied, moved or changed.
    tokenizer
        For a model of transformers in memory, its tokenizer, or the image processor or processor that its task needs.
    device
        The device of a model from files, such as "cuda"; None is the CPU. Objects stay on their device: giving another
        raises an error.
    dtype
        The dtype of the weights of a model from files, such as "bfloat16"; None is float32. The ledger closes up to
        rounding errors of this dtype. Objects keep their dtype: giving another raises an error.
    labels
        For models such as CLIP, the texts that images are compared with. Other models define their labels themselves.
    head
        How the logits of a classifier are interpreted, if its configuration is wrong or lacks it: "single_label",
        "multi_label", "binary", "regression" or "ordinal".
    trust_remote_code
        Whether to run Python code that comes with the files of a model.
    progress
        Called with the number of converted tensors and of all while a GGUF file is converted, which happens once: the
        result is cached in the folder CONSERVA_CACHE, or else in the platform's folder for caches.

    Returns
    -------
    Task
        A `conserva.Text`, `conserva.Causal`, `conserva.Image` and so on.

    Examples
    --------
    >>> conserva.load()
    Text('sentiment', model=BertForSequenceClassification, device='cpu')
    """
    if not isinstance(model, (str, os.PathLike)):
        return checked(task_of(model, tokenizer, labels, head), device, dtype)
    given = f"model={str(model)!r}"
    if tokenizer is not None:
        raise Error(f"tokenizer is for a model in memory, but {given} names files, which have their own: leave it out.")
    torch_device = usable_device("cpu" if device is None else device, f"device={str(device)!r}")
    torch_dtype = float_dtype("float32" if dtype is None else dtype)
    source = source_of(model)
    if source.endswith(GGUF) and not all(map(find_spec, ("gguf", "accelerate"))):
        raise Error(f"{given} needs the packages gguf and accelerate: pip install 'conserva[gguf]'.")
    if not os.path.exists(source):
        source = hub_source(source, given)
    from ..models import attention_only, graphormer  # noqa: F401 - registers them with transformers

    with reading(given, _advice(source)):
        if source.endswith(GGUF):
            task = _from_gguf(Path(source), str(model), given, torch_dtype, labels, head, progress)
        else:
            task = _from_files(source, {"trust_remote_code": trust_remote_code}, str(model), torch_dtype, labels, head)
        check_ids(task, given)
    return task if torch_device.type == "cpu" else task.to(torch_device)


def _from_gguf(
    path: Path,
    name: str,
    given: str,
    dtype: torch.dtype,
    labels: Sequence[str] | None,
    head: str | None,
    progress: Progress | None,
) -> Task:
    """Return the task of a GGUF file: such files contain language models and nothing else."""
    if labels is not None:
        raise Error(f"labels={labels!r:.60} is for image models, but {given} is a language model: leave it out.")
    refuse_head(Causal, head, given)
    return Causal(*load_gguf(path, dtype, progress), name=name)


def _from_files(
    source: str,
    options: dict[str, Any],
    name: str,
    dtype: torch.dtype,
    labels: Sequence[str] | None,
    head: str | None,
) -> Task:
    if labels is not None:
        return load_image(source, options, labels, name, head, dtype)
    config, given = config_of(source, options), f"model={name!r}"
    task_class = task_class_of(config, source, name)
    kind = task_class.kind
    assert kind is not None
    refuse_head(task_class, head, given)
    network, missing = model_of(kind.auto, source, options, config, dtype)
    if missing:
        raise Error(
            f"{given} is not a {kind.noun}: its weights lack {', '.join(missing[:3])}. Fine-tune the model first."
        )
    how = {"head": head} if kind.classifies else {}
    return task_class.from_files(network, source, options, name, **how)


def _advice(source: str) -> str:
    """Return the end of the error message for a model that could not be loaded: the likely cause and what to do."""
    if os.path.exists(source):
        return "its files are damaged or of different models. Save it with save_pretrained, or download it again."
    bundled = ", ".join(map(repr, BUNDLED_MODELS))
    return (
        "it is not a folder with config.json, model.safetensors and a tokenizer or processor, and it could not be "
        f"downloaded from the hub.{did_you_mean(source)} The bundled models are {bundled}."
    )


def source_of(name: str | os.PathLike[str]) -> str:
    """Resolve a model's name to the path of a bundled model, a folder or a GGUF file, or to a name on the hub."""
    path, given = expanded(Path(name)), f"model={str(name)!r}"
    if str(name) in BUNDLED_MODELS and not os.path.isfile(path / "config.json"):
        return str(resources.files("conserva") / "models" / str(name))
    if path.suffix == GGUF:
        if not exists(path):
            raise Error(f"{given} does not exist: give the path of a GGUF file.{did_you_mean(str(name))}")
        return str(check_readable(path, given, sys.maxsize))
    if os.path.isdir(path):
        if not os.path.isfile(path / "config.json"):
            raise Error(f"{given} is a folder without config.json: save a model there with save_pretrained.")
        return str(path)
    if exists(path):
        raise Error(f"{given} is not a folder: name one with config.json, model.safetensors and a tokenizer.")
    return str(name)
