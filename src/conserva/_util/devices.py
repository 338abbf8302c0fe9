"""Devices and data types, as users name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Error

if TYPE_CHECKING:
    import torch


def usable_device(device: str | int | torch.device, given: str) -> torch.device:
    """Return a device if torch can compute on it. `given` is what the user wrote, for the message."""
    import torch

    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise Error(f"{given}: {str(error).splitlines()[0]}") from None
    if found.type == "meta":
        raise Error(f"{given} computes nothing: choose cpu, or a GPU as cuda.")
    return found


def float_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return a floating-point data type of torch, or the one with a name such as "bfloat16"."""
    import torch

    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point or found.itemsize < 2:
        raise Error(f"dtype={dtype!r} is not a data type to explain in: choose float32, bfloat16, float16 or float64.")
    return found
