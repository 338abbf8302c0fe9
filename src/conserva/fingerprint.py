"""A hash of a model's weights."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .errors import Error


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
    fetching = importlib.import_module("accelerate.utils.modeling")  # whoever has such a model has it from there
    return dict(fetching.get_state_dict_offloaded_model(model))
