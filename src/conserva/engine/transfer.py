"""Asynchronous copies between the host and a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .operations.mask_history import is_recording


def on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return integers as a tensor on a device, without synchronising.

    A CUDA graph would copy from the host's memory in every replay, after it was freed: there each integer is the
    constant of a fill kernel.
    """
    if is_recording():
        return torch.stack([torch.full((), number, device=device) for number in numbers])
    return torch.tensor(numbers).to(device, non_blocking=True)


class Transfer:
    """Tensors that are being copied to the host, asynchronously, on the current stream."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._shapes = [(x.shape, x.dtype) for x in tensors]
        wide = torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32
        device = tensors[0].device
        self._packed = torch.cat([x.detach().reshape(-1).to(device, wide) for x in tensors])
        self._arrived: torch.cuda.Event | None = None
        if device.type == "cuda":
            # Only copies to pinned memory are asynchronous.
            try:
                host = torch.empty(self._packed.shape, dtype=wide, pin_memory=True)
            except RuntimeError:
                return  # not available: `read` will copy
            self._packed = host.copy_(self._packed, non_blocking=True)
            self._arrived = torch.cuda.current_stream(device).record_event()

    def read(self) -> list[Tensor]:
        """Wait for the copy, and return the tensors on the host."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values = self._packed.cpu()
        sizes = [shape.numel() for shape, _ in self._shapes]
        parts = torch.split(values, sizes)
        return [part.reshape(shape).to(dtype) for part, (shape, dtype) in zip(parts, self._shapes, strict=True)]
