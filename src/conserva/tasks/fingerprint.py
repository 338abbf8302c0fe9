"""Identity of models and tasks: a hash of the weights, and everything else that results depend on."""

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

_IGNORED = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
"""Configuration entries that do not affect results, or that are part of the identity elsewhere."""


def fingerprint(model: nn.Module) -> str:
    """Return a short hash of a model's state dict: names, dtypes, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(_weights(model).items()):
        if not isinstance(tensor, Tensor):
            raise Error(
                f"{type(model).__name__} has {name!r} as a {type(tensor).__name__}, not a tensor: it is quantised in a "
                "way that has no gradients in torch. Load the model without quantisation."
            )
        plain = tensor.detach().contiguous().cpu()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _weights(model: nn.Module) -> Mapping[str, Any]:
    """Return a model's weights, including weights that are offloaded."""
    weights = model.state_dict()
    if not any(isinstance(tensor, Tensor) and tensor.is_meta for tensor in weights.values()):
        return weights
    modeling = importlib.import_module("accelerate.utils.modeling")  # offloading is done by accelerate
    return dict(modeling.get_state_dict_offloaded_model(model))


def identity_of(task: Task) -> dict[str, Any]:
    """Return everything that the results of a task depend on, serialisable as JSON; a resumed run must have the same.

    Weights alone are not enough: the same weights with another activation function are another model.
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
        "dtype": sorted({str(parameter.dtype).removeprefix("torch.") for parameter in network.parameters()}),
        "configuration": configuration_of(config),
        "attention": getattr(config, "_attn_implementation", None),
        **{name: preprocessor_hash(preprocessor) for name, preprocessor in task.preprocessors.items()},
    }


def configuration_of(config: Any) -> dict[str, Any]:
    """Return the entries of a model's configuration that affect results, serialisable as JSON."""
    entries = config.to_dict() if hasattr(config, "to_dict") else {}
    return {str(key): _plain(value) for key, value in entries.items() if key not in _IGNORED}


def preprocessor_hash(preprocessor: Any) -> str:
    """Return a short hash of a tokenizer, an image processor or a feature extractor."""
    if not hasattr(preprocessor, "get_vocab"):
        settings = preprocessor.to_dict() if hasattr(preprocessor, "to_dict") else vars(preprocessor)
        return hash_of(_plain(settings))
    backend = getattr(preprocessor, "backend_tokenizer", None)
    content = json.loads(backend.to_str()) if backend is not None else {"vocabulary": preprocessor.get_vocab()}
    for name in ("padding", "truncation"):  # calls of the tokenizer change these
        content.pop(name, None)
    names = ("model_max_length", "padding_side", "truncation_side", "model_input_names", "chat_template")
    settings = {name: _plain(getattr(preprocessor, name, None)) for name in names}
    special = _plain(getattr(preprocessor, "special_tokens_map", {}))
    return hash_of([type(preprocessor).__name__, content, settings, special])


def _plain(value: Any) -> Any:
    """Return a value converted to JSON types; other objects become their `str`."""
    return json.loads(json.dumps(value, default=str))


def hash_of(value: Any) -> str:
    """Return a short hash of a value of JSON types."""
    return _hash(json.dumps(value, sort_keys=True))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
