"""Inputs of similar length side by side, as many as a budget of tokens allows: tokens are what fills a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from ..errors import Error

ON_CPU, ON_GPU = 2048, 8192
"""Tokens in a batch of explanations. On a CPU small batches stay in its caches; on a GPU these fill it."""


def budget(batch_tokens: int | None, model: nn.Module) -> int:
    """Return how many tokens a batch has, pads included: as given, or what suits the device of the model."""
    if batch_tokens is not None and batch_tokens < 1:
        raise Error(f"batch_tokens={batch_tokens} explains nothing: give 1 or more.")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return batch_tokens or (ON_CPU if device.type == "cpu" else ON_GPU)


def by_length(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield the numbers of inputs whose rows, padded to the longest, hold so many tokens; at least one at a time."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[i] > tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
