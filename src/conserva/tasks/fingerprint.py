"""What tells one model from another: a hash of its weights, and all else of a task that decides its numbers."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import Error

if TYPE_CHECKING:
    from .task import Task

_NOT_DECISIVE = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
"""Entries of a configuration that decide nothing, or that are told elsewhere."""


def fingerprint(model: nn.Module) -> str:
    """Return a short hash of all parameters and stored buffers, by name, type and value."""
    digest = hashlib.sha256()
    for name, tensor in sorted(_weights(model).items()):
        if not isinstance(tensor, Tensor):
            raise Error(
                f"{type(model).__name__} holds {name!r} as a {type(tensor).__name__}, no tensor: it is quantised in a "
                "way that torch has no gradients for. Load it as it was before."
            )
        plain = tensor.detach().contiguous().cpu()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _weights(model: nn.Module) -> Mapping[str, Any]:
    """Return a model's weights, those too that are fetched only while they are used."""
    found = model.state_dict()
    if not any(isinstance(one, Tensor) and one.is_meta for one in found.values()):
        return found
    fetching = importlib.import_module("accelerate.utils.modeling")  # such models are made by accelerate
    return dict(fetching.get_state_dict_offloaded_model(model))


def identity_of(task: Task) -> dict[str, Any]:
    """Return all of a task that decides its numbers, as JSON takes it: a run that goes on must have the same.

    Weights alone do not tell models apart: the same weights with another activation function are another model.
    """
    network = task.network
    config = getattr(network, "config", None)
    return {
        "task": type(task).__name__,
        "options": _plain(task.options),
        "head": task.head.name,
        "network": f"{type(network).__module__}.{type(network).__qualname__}",
        "modules": _hash(repr(network)),
        "weights": fingerprint(network),
        "dtype": sorted({str(one.dtype).removeprefix("torch.") for one in network.parameters()}),
        "configuration": configuration_of(config),
        "attention": getattr(config, "_attn_implementation", None),
        **{name: preprocessor_hash(one) for name, one in task.preprocessors.items()},
    }


def configuration_of(config: Any) -> dict[str, Any]:
    """Return what decides numbers of a model's configuration, as JSON takes it."""
    found = config.to_dict() if hasattr(config, "to_dict") else {}
    return {str(key): _plain(value) for key, value in found.items() if key not in _NOT_DECISIVE}


def preprocessor_hash(preprocessor: Any) -> str:
    """Return a short hash of a tokenizer, an image processor or a feature extractor."""
    if not hasattr(preprocessor, "get_vocab"):
        settings = preprocessor.to_dict() if hasattr(preprocessor, "to_dict") else vars(preprocessor)
        return hash_of(_plain(settings))
    backend = getattr(preprocessor, "backend_tokenizer", None)
    known = json.loads(backend.to_str()) if backend is not None else {"vocabulary": preprocessor.get_vocab()}
    for name in ("padding", "truncation"):  # which calls set and leave behind
        known.pop(name, None)
    names = ("model_max_length", "padding_side", "truncation_side", "model_input_names", "chat_template")
    settings = {name: _plain(getattr(preprocessor, name, None)) for name in names}
    special = _plain(getattr(preprocessor, "special_tokens_map", {}))
    return hash_of([type(preprocessor).__name__, known, settings, special])


def _plain(value: Any) -> Any:
    """Return a value as JSON takes it; what JSON has no form for, by its name."""
    return json.loads(json.dumps(value, default=str))


def hash_of(value: Any) -> str:
    """Return a short hash of a value that JSON takes."""
    return _hash(json.dumps(value, sort_keys=True))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
