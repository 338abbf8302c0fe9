"""Which keys a query sees: a mask, or the band that a mask spells out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LARGE_MASK = 2**20
"""From how many entries on a mask is looked at: reading it for every head would cost more."""


@dataclass(frozen=True)
class Sight:
    """Which keys a query sees, and the factor of its scores."""

    mask: Tensor | None
    is_causal: bool
    scale: float
    window: int = 0
    """How many keys back a query sees, itself included; 0 for all."""


def sight_of(query: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> Sight:
    """Return what queries see, a large mask that only spells out a causal band as that band."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    looked_at = mask is not None and mask.is_cuda and mask.dtype == torch.bool and mask.numel() >= LARGE_MASK
    if mask is None or not looked_at or mask.dim() != 4 or torch.cuda.is_current_stream_capturing():
        return Sight(mask, is_causal, factor)
    window = _window(mask)
    if window is None:
        return Sight(mask, is_causal, factor)
    return Sight(None, True, factor, window if window < mask.shape[-1] else 0)


def _window(mask: Tensor) -> int | None:
    """Return how many keys back each query sees, if that is all that a mask says.

    It is looked at once: layers are given the same tensor, or views of it.
    """
    owner = mask if mask._base is None else mask._base
    known: dict[object, int | None] = owner.__dict__.setdefault("conserva_windows", {})
    key = (mask.storage_offset(), mask.shape, mask.stride(), mask._version)
    if key not in known:
        known[key] = find_window(mask)
    return known[key]


def find_window(mask: Tensor) -> int | None:
    """Return the width of the causal band that is True in every matrix of a mask, or nothing if that is not so."""
    queries, keys = mask.shape[-2:]
    if queries != keys:
        return None
    rows = torch.arange(queries, device=mask.device)
    matrices = [mask[i, j] for i in range(_distinct(mask, 0)) for j in range(_distinct(mask, 1))]
    width = int(matrices[0][-1].sum())
    if width == 0:
        return None
    for start in range(0, queries, 4096):
        back = rows[start : start + 4096, None] - rows
        band = (back >= 0) & (back < width)
        if not all(torch.equal(matrix[start : start + 4096], band) for matrix in matrices):
            return None
    return width


def _distinct(mask: Tensor, axis: int) -> int:
    """Return how many matrices lie along an axis, those that are one and the same in memory counted once."""
    return 1 if mask.stride(axis) == 0 else mask.shape[axis]
