"""GPU kernels, written in Triton. They are imported lazily, because Triton is not needed on a CPU."""

from __future__ import annotations

import functools
import importlib.util

import torch


def kernels_available(device: torch.device) -> bool:
    """Return whether the kernels run on a device: a GPU with bfloat16, and a Triton with tensor descriptors."""
    return device.type == "cuda" and _kernels_available(device.index)


@functools.cache
def _kernels_available(index: int | None) -> bool:
    if (
        torch.version.hip
        or importlib.util.find_spec("triton") is None
        or torch.cuda.get_device_capability(index)[0] < 8
    ):
        return False
    try:
        return importlib.util.find_spec("triton.tools.tensor_descriptor") is not None
    except ModuleNotFoundError:
        return False
