"""Loading a model as the task that its configuration says it is for."""

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
from . import Graph, Seq2Seq, Task
from .heads import LANGUAGE, head_of
from .image import load_image

GRAPHS = "conserva-graphormer"
"""The type of models of graphs."""

GGUF = ".gguf"
"""How files end that hold a language model with its configuration and its tokenizer."""


def load(
    model: str | Path = BUNDLED,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    labels: Sequence[str] | None = None,
    head: str | None = None,
    trust_remote_code: bool = False,
) -> Task:
    """Load a model as the task that its configuration says it is for.

    Tasks are: classifying texts, images or graphs, continuing a prompt, translating, transcribing, tagging words,
    answering questions, filling blanks, comparing sentences. Weights are read from safetensors and GGUF only.

    Parameters
    ----------
    model
        A folder, a GGUF file, a name on the Hugging Face hub, or a bundled model: "sentiment", "digits", "bace" or
        "mnist".
    device
        Where the model computes, such as "cuda".
    dtype
        The data type of the weights, such as "bfloat16". The ledger closes to rounding in this type.
    labels
        The texts that a model such as CLIP compares images with. Other models have labels of their own.
    head
        What the logits of a classifier mean, where its configuration is wrong or silent: "single_label",
        "multi_label", "binary", "regression" or "ordinal".
    trust_remote_code
        Whether code that comes with the model may run.

    Returns
    -------
    Task
        A `conserva.Text`, `conserva.Causal`, `conserva.Image` and so on.

    Examples
    --------
    >>> conserva.load()
    Text('sentiment', model=BertForSequenceClassification, device='cpu')
    """
    from ..models import attention_only, graphormer  # noqa: F401 - which makes them known to transformers

    source, given = source_of(model), f"model={str(model)!r}"
    place, kind_of_numbers = usable_device(device, f"device={str(device)!r}"), float_dtype(dtype)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if source.endswith(GGUF):
        if not all(map(find_spec, ("gguf", "accelerate"))):
            raise Error(f"{given} is read by gguf and accelerate: pip install 'conserva[gguf]'.")
        source, options["gguf_file"] = str(Path(source).parent), Path(source).name
    with reading(given, _advice(source)):
        task = _task(source, options, str(model), given, kind_of_numbers, labels, head)
    return task if place.type == "cpu" else task.to(place)


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
    kind = None if config.model_type == GRAPHS else head_of(config, source, name)
    if "gguf_file" in options:
        kind = LANGUAGE  # which is all that such files hold
    if head is not None and kind is not None and not kind.classifies:
        raise Error(f"head={head!r}: {given} is a {kind.noun}, whose output head is its own.")
    auto = "AutoModelForSequenceClassification" if kind is None else kind.auto
    network, missing = model_of(auto, source, options, config, dtype)
    if missing:
        noun = "graph classifier" if kind is None else kind.noun
        raise Error(
            f"{given} is not a {noun}: its file has no weights for {', '.join(missing[:3])}. Fine-tune it first."
        )
    if kind is None:
        return Graph(network, name=name, head=head)
    how = {"head": head} if kind.classifies else {}
    task = kind.make(network, source, options, name, **how)
    _check_ids(task, given)
    return task


def _check_ids(task: Task, given: str) -> None:
    """Refuse a tokenizer whose tokens are not the model's. Some that were added to it may be beyond, if never met."""
    tokenizer, network, table = getattr(task, "tokenizer", None), task.network, None
    with suppress(AttributeError, NotImplementedError):
        table = network.get_input_embeddings()  # type: ignore[operator]
    if tokenizer is None or not isinstance(table, nn.Embedding):
        return
    own = set(tokenizer.get_vocab().values()) - set(tokenizer.get_added_vocab().values())
    used = [*own, *tokenizer("a")["input_ids"]]
    if isinstance(task, Seq2Seq):
        with suppress(Error):  # it is not told, and may still be
            used += task.start
    if wrong := [one for one in used if not 0 <= one < table.num_embeddings]:
        raise Error(
            f"{given} has embeddings for {table.num_embeddings:,} tokens, its tokenizer or generation_config.json uses "
            f"the id {max(wrong, key=abs)}: they are not of one model. Save it again with save_pretrained."
        )


def _advice(source: str) -> str:
    """Return what to do about a model that could not be loaded."""
    if os.path.isdir(source):
        return "its files are damaged, or not those of one model. Save it with save_pretrained, or download it again."
    bundled = ", ".join(map(repr, BUNDLED_MODELS))
    return (
        "it is not a folder with config.json, model.safetensors and a tokenizer or processor, and the hub did not give "
        f"it. Bundled models are {bundled}."
    )


def source_of(name: str | Path) -> str:
    """Return what a model is loaded from: a bundled one by its name, a folder, a GGUF file, or a name on the hub."""
    path, given = expanded(name), f"model={str(name)!r}"
    if str(name) in BUNDLED_MODELS and not os.path.isfile(path / "config.json"):
        return str(resources.files("conserva") / "models" / str(name))
    if path.suffix == GGUF:
        if not exists(path):
            raise Error(f"{given} does not exist: give a GGUF file that does.")
        return str(check_readable(path, given, sys.maxsize))
    if os.path.isdir(path):
        if not os.path.isfile(path / "config.json"):
            raise Error(f"{given} is a folder without config.json: save a model there with save_pretrained.")
        return str(path)
    if exists(path):
        raise Error(f"{given} is not a folder: name one with config.json, model.safetensors and a tokenizer.")
    return str(name)
