"""Batches of inputs of similar length, limited by the number of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from ..errors import Error

ON_CPU, ON_GPU = 2048, 8192
"""Default number of tokens in a batch: small enough for the caches of a CPU, large enough to fill a GPU."""


def budget(batch_tokens: int | None, model: nn.Module) -> int:
    """Return the maximum number of tokens in a batch, padding included: as given, or the default for the device."""
    if batch_tokens is not None and batch_tokens < 1:
        raise Error(f"batch_tokens={batch_tokens} is too small: give 1 or more.")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return batch_tokens or (ON_CPU if device.type == "cpu" else ON_GPU)


def by_length(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield batches as lists of indices into `lengths`, of at most `tokens` tokens after padding, or of one input."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[i] > tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
