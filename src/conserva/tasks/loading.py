"""`conserva.load`: load a model as the task that its configuration names."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._util.devices import float_dtype, usable_device
from .._util.files import check_readable, exists, expanded
from ..errors import Error
from ..models.bundled import BUNDLED, BUNDLED_MODELS
from ..models.pretrained import config_of, model_of, reading
from .causal import Causal
from .detection import task_class_of
from .graph import Graph
from .image import load_image
from .seq2seq import Seq2Seq
from .task import Task

GRAPHS = "conserva-graphormer"
"""The `model_type` of graph classifiers."""

GGUF = ".gguf"
"""The suffix of files that contain a language model with its configuration and tokenizer."""


def load(
    model: str | Path = BUNDLED,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    labels: Sequence[str] | None = None,
    head: str | None = None,
    trust_remote_code: bool = False,
) -> Task:
    """Load a model as the task that its configuration names.

    The tasks are: classification of texts, images or graphs, text generation, translation, transcription, token
    classification, question answering, masked language modelling, and sentence similarity. Only safetensors and GGUF
    weights are read.

    Parameters
    ----------
    model
        A folder, a GGUF file, a name on the Hugging Face Hub, or a bundled model: "sentiment", "digits", "bace" or
        "mnist".
    device
        The device of the model, such as "cuda".
    dtype
        The dtype of the weights, such as "bfloat16". The ledger closes up to rounding errors of this dtype.
    labels
        For models such as CLIP, the texts that images are compared with. Other models define their labels themselves.
    head
        How the logits of a classifier are interpreted, if its configuration is wrong or lacks it: "single_label",
        "multi_label", "binary", "regression" or "ordinal".
    trust_remote_code
        Whether to run Python code that comes with the model.

    Returns
    -------
    Task
        A `conserva.Text`, `conserva.Causal`, `conserva.Image` and so on.

    Examples
    --------
    >>> conserva.load()
    Text('sentiment', model=BertForSequenceClassification, device='cpu')
    """
    from ..models import attention_only, graphormer  # noqa: F401 - registers them with transformers

    source, given = source_of(model), f"model={str(model)!r}"
    torch_device, torch_dtype = usable_device(device, f"device={str(device)!r}"), float_dtype(dtype)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if source.endswith(GGUF):
        if not all(map(find_spec, ("gguf", "accelerate"))):
            raise Error(f"{given} needs the packages gguf and accelerate: pip install 'conserva[gguf]'.")
        source, options["gguf_file"] = str(Path(source).parent), Path(source).name
    with reading(given, _advice(source)):
        task = _task(source, options, str(model), given, torch_dtype, labels, head)
    return task if torch_device.type == "cpu" else task.to(torch_device)


def _task(
    source: str,
    options: dict[str, Any],
    name: str,
    given: str,
    dtype: torch.dtype,
    labels: Sequence[str] | None,
    head: str | None,
) -> Task:
    if labels is not None:
        return load_image(source, options, labels, name, head, dtype)
    config = config_of(source, options)
    if config.model_type == GRAPHS:
        task_class: type[Task] = Graph
    elif "gguf_file" in options:
        task_class = Causal  # GGUF files contain nothing else
    else:
        task_class = task_class_of(config, source, name)
    kind = task_class.kind
    assert kind is not None
    if head is not None and not kind.classifies:
        raise Error(f"head={head!r} is for classifiers, but {given} is a {kind.noun}: leave it out.")
    network, missing = model_of(kind.auto, source, options, config, dtype)
    if missing:
        raise Error(
            f"{given} is not a {kind.noun}: its weights lack {', '.join(missing[:3])}. Fine-tune the model first."
        )
    how = {"head": head} if kind.classifies else {}
    task = task_class.from_files(network, source, options, name, **how)
    _check_ids(task, given)
    return task


def _check_ids(task: Task, given: str) -> None:
    """Raise if the tokenizer has ids beyond the model's embedding table. Added tokens may, as they may be unused."""
    tokenizer, network, table = getattr(task, "tokenizer", None), task.network, None
    with suppress(AttributeError, NotImplementedError):
        table = network.get_input_embeddings()  # type: ignore[operator]
    if tokenizer is None or not isinstance(table, nn.Embedding):
        return
    own = set(tokenizer.get_vocab().values()) - set(tokenizer.get_added_vocab().values())
    used = [*own, *tokenizer("a")["input_ids"]]
    if isinstance(task, Seq2Seq):
        with suppress(Error):  # the configuration may lack the start token, which then is needed only in use
            used += task.start
    if wrong := [token for token in used if not 0 <= token < table.num_embeddings]:
        raise Error(
            f"{given} has embeddings for {table.num_embeddings:,} tokens, but its tokenizer or generation_config.json "
            f"uses the id {max(wrong, key=abs)}: they belong to different models. Save them again with save_pretrained."
        )


def _advice(source: str) -> str:
    """Return the end of the error message for a model that could not be loaded: the likely cause and what to do."""
    if os.path.isdir(source):
        return "its files are damaged or of different models. Save it with save_pretrained, or download it again."
    bundled = ", ".join(map(repr, BUNDLED_MODELS))
    return (
        "it is not a folder with config.json, model.safetensors and a tokenizer or processor, and it could not be "
        f"downloaded from the hub. The bundled models are {bundled}."
    )


def source_of(name: str | Path) -> str:
    """Resolve a model's name to the path of a bundled model, a folder or a GGUF file, or to a name on the hub."""
    path, given = expanded(name), f"model={str(name)!r}"
    if str(name) in BUNDLED_MODELS and not os.path.isfile(path / "config.json"):
        return str(resources.files("conserva") / "models" / str(name))
    if path.suffix == GGUF:
        if not exists(path):
            raise Error(f"{given} does not exist: give the path of a GGUF file.")
        return str(check_readable(path, given, sys.maxsize))
    if os.path.isdir(path):
        if not os.path.isfile(path / "config.json"):
            raise Error(f"{given} is a folder without config.json: save a model there with save_pretrained.")
        return str(path)
    if exists(path):
        raise Error(f"{given} is not a folder: name one with config.json, model.safetensors and a tokenizer.")
    return str(name)
