"""Texts as batches of token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...datasets import Labelled
from .samples import Batch, Samples

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TextSamples(Samples):
    """All texts of a split as one padded table of token ids."""

    ids: Tensor
    lengths: Tensor
    labels: Tensor

    stretch = 50
    measured = 32768
    suspect = "embeddings"

    @classmethod
    def of(cls, data: Labelled, tokenizer: PreTrainedTokenizerBase, tokens: int, device: torch.device) -> TextSamples:
        """Tokenize texts, truncated to `tokens` tokens."""
        assert data.labels is not None
        found = tokenizer(list(data.texts), truncation=True, max_length=tokens)["input_ids"]
        lengths = torch.tensor([len(one) for one in found])
        ids = torch.full((len(found), int(lengths.max())), int(tokenizer.pad_token_id or 0), dtype=torch.int32)
        for row, one in zip(ids, found, strict=True):
            row[: len(one)] = torch.tensor(one, dtype=torch.int32)
        return cls(ids.to(device), lengths, torch.tensor([int(one) for one in data.labels]).to(device))

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
