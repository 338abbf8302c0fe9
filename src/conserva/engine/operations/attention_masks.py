"""Which keys a query sees: a mask, or the band that a mask spells out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

LARGE_MASK = 2**20
"""From how many entries on a mask is looked at: reading it for every head would cost more."""


@dataclass(frozen=True)
class Sight:
    """Which keys a query sees, and the factor of its scores."""

    mask: Tensor | None
    is_causal: bool
    scale: float
    window: int = 0
    """How many keys a query sees, itself included, backward, and forward too unless it is causal; 0 for all."""


@dataclass(frozen=True)
class Band:
    """All keys within a distance, and none that come later if it is causal."""

    window: int
    is_causal: bool


_bands = WeakTensorKeyDictionary()
"""Mask, or the tensor that it is a view of -> the bands found in it. Nothing is left on a tensor of the model's."""


def sight_of(query: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> Sight:
    """Return what queries see, a large mask that only spells out a band as that band."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    band = None if mask is None or not _is_worth_a_look(mask) else _band(mask)
    if mask is None or band is None:
        return Sight(mask, is_causal, factor)
    return Sight(None, band.is_causal, factor, band.window if band.window < mask.shape[-1] else 0)


def _is_worth_a_look(mask: Tensor) -> bool:
    large = mask.is_cuda and mask.dtype == torch.bool and mask.dim() == 4 and mask.numel() >= LARGE_MASK
    # To look is to wait for the device, which a recording cannot; and only plain tensors tell when they change.
    return large and not mask.is_inference() and not torch.cuda.is_current_stream_capturing()


def _band(mask: Tensor) -> Band | None:
    """Return the band that a mask is. It is looked at once: layers are given the same tensor, or views of it."""
    owner = mask if mask._base is None else mask._base
    known: dict[object, Band | None] = _bands.setdefault(owner, {})  # type: ignore[no-untyped-call]
    key = (mask.storage_offset(), mask.shape, mask.stride(), mask._version)
    if key not in known:
        known[key] = find_band(mask)
    return known[key]


def find_band(mask: Tensor) -> Band | None:
    """Return the band that is True in every matrix of a mask, or nothing if that is not so."""
    queries, keys = mask.shape[-2:]
    if queries != keys:
        return None
    matrices = [mask[i, j] for i in range(_distinct(mask, 0)) for j in range(_distinct(mask, 1))]
    ahead, back = torch.stack([matrices[0][0].sum(), matrices[0][-1].sum()]).tolist()
    if not ahead or not back or ahead not in (1, back):
        return None
    places = torch.arange(queries, device=mask.device)
    for start in range(0, queries, 4096):
        distance = places[start : start + 4096, None] - places
        band = (distance > -ahead) & (distance < back)
        if not all(torch.equal(matrix[start : start + 4096], band) for matrix in matrices):
            return None
    return Band(back, ahead == 1)


def _distinct(mask: Tensor, axis: int) -> int:
    """Return how many matrices lie along an axis, those that are one and the same in memory counted once."""
    return 1 if mask.stride(axis) == 0 else mask.shape[axis]
