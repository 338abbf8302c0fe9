"""Samples as batches, and texts as batches of token ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...datasets import Labelled

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


STRETCH = 50
"""Batches whose texts are sorted by length together: pads cost half of the time on reviews, more on phrases."""

Batch = tuple[Mapping[str, Tensor], Tensor]
"""What a model is called with, and the labels."""


class Samples(ABC):
    """All samples of a split, kept where the model is: a batch is a choice of them."""

    lengths: Tensor
    """How many tokens each has, on the CPU: the width of a batch is known without waiting for a GPU."""
    labels: Tensor

    def __len__(self) -> int:
        return len(self.lengths)

    def shuffled(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield batches in a random order; within a stretch of many, samples of like length are put together."""
        batches: list[Tensor] = []
        for stretch in torch.split(torch.randperm(len(self), generator=generator), self._stretch() * size):
            by_length = stretch[self.lengths[stretch].argsort(stable=True)]
            batches.extend(torch.split(by_length, size))
        for number in torch.randperm(len(batches), generator=generator).tolist():
            yield self._batch(batches[number])

    def by_length(self, tokens: int) -> Iterator[Batch]:
        """Yield batches of about so many tokens, samples of like length together."""
        order = self.lengths.argsort(descending=True, stable=True)
        start = 0
        while start < len(order):
            rows = order[start : start + max(1, tokens // int(self.lengths[order[start]]))]
            yield self._batch(rows)
            start += len(rows)

    @abstractmethod
    def _stretch(self) -> int:
        """Return how many batches are sorted by length together."""

    @abstractmethod
    def _batch(self, rows: Tensor) -> Batch:
        """Return some samples, padded to the longest."""


@dataclass(frozen=True)
class Batches(Samples):
    """All texts of a split as one padded table, kept where the model is: a batch is a choice of its rows."""

    ids: Tensor
    lengths: Tensor
    labels: Tensor

    @classmethod
    def of(cls, data: Labelled, tokenizer: PreTrainedTokenizerBase, tokens: int, device: torch.device) -> Batches:
        """Turn texts into tokens, cut after so many."""
        assert data.labels is not None
        found = tokenizer(list(data.texts), truncation=True, max_length=tokens)["input_ids"]
        lengths = torch.tensor([len(one) for one in found])
        ids = torch.full((len(found), int(lengths.max())), int(tokenizer.pad_token_id or 0), dtype=torch.int32)
        for row, one in zip(ids, found, strict=True):
            row[: len(one)] = torch.tensor(one, dtype=torch.int32)
        return cls(ids.to(device), lengths, torch.tensor([int(one) for one in data.labels]).to(device))

    def _stretch(self) -> int:
        return STRETCH

    def _batch(self, rows: Tensor) -> Batch:
        lengths = self.lengths[rows]
        width = int(lengths.max())
        mask = torch.arange(width) < lengths[:, None]
        device = self.ids.device
        where = rows.to(device, non_blocking=True)
        inputs = {
            "input_ids": self.ids[where, :width].long(),
            "attention_mask": mask.to(device, non_blocking=True),
        }
        return inputs, self.labels[where]
