"""Texts that are read at one of their tokens: at the word that is asked about, or where one is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import Error
from .encoded_text import EncodedText
from .masking import TextRows
from .reading import Answer, Reading, each_at_its_place
from .text import Text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class EncodedAtPlace(EncodedText):
    """A text as the model sees it, and the token at which it is read."""

    read: int = field(kw_only=True)

    @property
    def key(self) -> str:
        return f"{self.ids} {self.read}"

    @property
    def fixed(self) -> tuple[bool, ...]:
        return tuple(i == self.read for i in range(len(self)))


@dataclass(frozen=True)
class RowsAtPlace(TextRows):
    """A text with other tokens taken away in each row, and the token at which each row is read."""

    read: np.ndarray

    def __getitem__(self, rows: slice | np.ndarray) -> RowsAtPlace:
        return RowsAtPlace(self.ids[rows], self.attention[rows], self.read[rows])

    def keys(self) -> np.ndarray:
        """Return ids, attention and the token that is read: equal texts that are read elsewhere are others."""
        return np.concatenate([super().keys(), self.read[:, None].view(np.uint8)], axis=1)


class AtPlace(Reading):
    """A network that scores classes at every token, read at one token of each sample."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, read: Tensor, **asked: Any) -> Answer:
        """Return the scores of each sample at its own token."""
        output = self.ask(input_ids=input_ids, attention_mask=attention_mask, **asked)
        scores = getattr(output, "logits", None)
        if not isinstance(scores, Tensor) or scores.dim() != 3:
            raise Error(f"{type(self.network).__name__} gives no scores at every token: load it with the head for it.")
        return self.answer(each_at_its_place(scores, read), output)


class TextAtPlace(Text):
    """A model and its tokenizer, asked about one token of a text: `encode_all` says which."""

    model: AtPlace
    takes_pairs = takes_ordinal = False

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        name: str | None = None,
        *,
        head: str | None = None,
    ) -> None:
        super().__init__(model, tokenizer, name, head=head)
        self.model = AtPlace(model)

    def batch(self, encoded: Sequence[Any]) -> dict[str, Tensor]:
        """Put texts side by side, padded on the right to the longest, each with the token at which it is read."""
        inputs = super().batch(encoded)
        read = torch.tensor([one.read for one in encoded])
        return {**inputs, "read": read.to(inputs["input_ids"].device, non_blocking=True)}

    def masked(self, encoded: Any, kept: np.ndarray, mask: str) -> RowsAtPlace:
        rows = super().masked(encoded, kept, mask)
        return RowsAtPlace(rows.ids, rows.attention, np.full(len(rows), encoded.read))

    def stack(self, parts: Sequence[Any]) -> dict[str, Tensor]:
        inputs = super().stack(parts)
        read = torch.from_numpy(np.concatenate([part.read for part in parts]))
        return {**inputs, "read": read.to(inputs["input_ids"].device)}
