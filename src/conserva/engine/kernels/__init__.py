"""GPU kernels, written in Triton. Imported where they are used, and only there: a CPU needs no Triton."""

from __future__ import annotations

import functools
import importlib.util

import torch


def at_hand(device: torch.device) -> bool:
    """Tell whether the kernels run on a device: a GPU with bfloat16, and a Triton that reads tensors in blocks."""
    return device.type == "cuda" and _at_hand(device.index)


@functools.cache
def _at_hand(index: int | None) -> bool:
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
