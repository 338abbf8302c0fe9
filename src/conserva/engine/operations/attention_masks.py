"""Attention masks, and the recognition of masks that are a band: causal, or a sliding window."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

LARGE_MASK = 2**20
"""The number of entries from which a mask is checked for a band: below, reading the mask in every head is cheaper."""


@dataclass(frozen=True)
class Visibility:
    """Which keys a query attends to, and the factor of its scores."""

    mask: Tensor | None
    is_causal: bool
    scale: float
    window: int = 0
    """The number of keys that a query attends to, its own included, backward and, unless causal, forward; 0 for all."""


@dataclass(frozen=True)
class Band:
    """All keys within a distance, without later ones if causal."""

    window: int
    is_causal: bool


_bands = WeakTensorKeyDictionary()
"""Mask, or its base if it is a view -> the bands found in it. Being outside the tensors, they leave them unchanged."""


def visibility_of(query: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> Visibility:
    """Return which keys queries attend to; a large mask that is a band is replaced by the band."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    band = None if mask is None or not _is_checked(mask) else _band(mask)
    if mask is None or band is None:
        return Visibility(mask, is_causal, factor)
    return Visibility(None, band.is_causal, factor, band.window if band.window < mask.shape[-1] else 0)


def _is_checked(mask: Tensor) -> bool:
    large = mask.is_cuda and mask.dtype == torch.bool and mask.dim() == 4 and mask.numel() >= LARGE_MASK
    # The check synchronises, which is impossible during graph capture; inference tensors have no version counter.
    return large and not mask.is_inference() and not torch.cuda.is_current_stream_capturing()


def _band(mask: Tensor) -> Band | None:
    """Return the band that a mask is, cached: layers get the same tensor, or views of it."""
    owner = mask if mask._base is None else mask._base
    known: dict[object, Band | None] = _bands.setdefault(owner, {})  # type: ignore[no-untyped-call]
    key = (mask.storage_offset(), mask.shape, mask.stride(), mask._version)
    if key not in known:
        known[key] = find_band(mask)
    return known[key]


def find_band(mask: Tensor) -> Band | None:
    """Return the band that all matrices of a mask have in common; None if they are not the same band."""
    queries, keys = mask.shape[-2:]
    if queries != keys:
        return None
    matrices = [mask[i, j] for i in range(_distinct(mask, 0)) for j in range(_distinct(mask, 1))]
    ahead, back = torch.stack([matrices[0][0].sum(), matrices[0][-1].sum()]).tolist()
    if not ahead or not back or ahead not in (1, back):
        return None
    positions = torch.arange(queries, device=mask.device)
    for start in range(0, queries, 4096):
        distance = positions[start : start + 4096, None] - positions
        band = (distance > -ahead) & (distance < back)
        if not all(torch.equal(matrix[start : start + 4096], band) for matrix in matrices):
            return None
    return Band(back, ahead == 1)


def _distinct(mask: Tensor, axis: int) -> int:
    """Return the number of matrices along a dimension, counting expanded ones, which share their memory, once."""
    return 1 if mask.stride(axis) == 0 else mask.shape[axis]
