"""The state of a training as one safetensors file: its tensors, and everything else as JSON in the file's metadata.

Unlike a pickle, such a file cannot run code. A checksum shows whether it is damaged.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..._util.files import atomic_file, check_readable, writing
from ...errors import Error

_STATE, _CHECKSUM = "state", "checksum"


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write nested dictionaries, lists and tuples of tensors, numbers, strings and None, atomically."""
    tensors: dict[str, Tensor] = {}
    described = json.dumps(_taken_apart(dict(state), tensors))
    metadata = {_STATE: described, _CHECKSUM: _checksum(described, tensors)}
    with writing(path), atomic_file(path) as half:
        save_file(tensors, half, metadata)


def read_state(path: Path, device: torch.device) -> dict[str, Any]:
    """Return what `write_state` wrote, with its tensors on a device. Raise an error if the file is damaged."""
    check_readable(path, str(path), sys.maxsize)
    with undamaged(path):
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        described = metadata[_STATE]
        if metadata[_CHECKSUM] != _checksum(described, tensors):
            raise ValueError("its checksum is another")
        return dict(_put_together(json.loads(described), {name: one.to(device) for name, one in tensors.items()}))


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Turn every exception into an `Error` which says that the file is damaged."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        raise Error(f"{path} is damaged ({type(error).__name__}: {error}): delete it and start anew.") from None


def _checksum(described: str, tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256(described.encode())
    for _, tensor in sorted(tensors.items()):
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _taken_apart(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON, with a name in place of each tensor; the tensors are added to `tensors`."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"dict": [[_taken_apart(key, tensors), _taken_apart(one, tensors)] for key, one in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_taken_apart(one, tensors) for one in value]}
    return value


def _put_together(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "tensor":
        return tensors[held]
    if kind == "dict":
        return {_put_together(key, tensors): _put_together(one, tensors) for key, one in held}
    return {"list": list, "tuple": tuple}[kind](_put_together(one, tensors) for one in held)
