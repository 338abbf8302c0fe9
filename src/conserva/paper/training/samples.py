"""The samples of a split as batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor

Batch = tuple[Mapping[str, Tensor], Tensor]
"""The inputs of the model, and the labels."""


class Samples(ABC):
    """All samples of a split, on the device of the model. A batch is a selection of them."""

    lengths: Tensor
    """The number of tokens of each sample, on the CPU: the width of a batch is known without waiting for a GPU."""
    labels: Tensor

    stretch: ClassVar[int]
    """How many batches of random samples are sorted by length together, which saves padding."""
    measured: ClassVar[int]
    """About how many tokens a batch has when the model is measured."""
    suspect: ClassVar[str]
    """What may be wrong, beside the learning rate, if the loss is not finite."""

    def __len__(self) -> int:
        return len(self.lengths)

    def shuffled(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield batches in a random order; samples of similar length are put together."""
        batches: list[Tensor] = []
        for stretch in torch.split(torch.randperm(len(self), generator=generator), self.stretch * size):
            by_length = stretch[self.lengths[stretch].argsort(stable=True)]
            batches.extend(torch.split(by_length, size))
        for number in torch.randperm(len(batches), generator=generator).tolist():
            yield self._batch(batches[number])

    def by_length(self, tokens: int) -> Iterator[Batch]:
        """Yield batches of about `tokens` tokens; samples of similar length are put together."""
        order = self.lengths.argsort(descending=True, stable=True)
        start = 0
        while start < len(order):
            rows = order[start : start + max(1, tokens // int(self.lengths[order[start]]))]
            yield self._batch(rows)
            start += len(rows)

    def checked(self) -> AbstractContextManager[None]:
        """Return a context in which the model need not check its inputs, if they were checked here."""
        return nullcontext()

    @abstractmethod
    def _batch(self, rows: Tensor) -> Batch:
        """Return some samples, padded to the longest."""
