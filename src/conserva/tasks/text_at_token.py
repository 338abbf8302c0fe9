"""Text models with an output at every token, explained at one of them."""

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
from .reading import Answer, Reading, at_positions
from .text import Text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class EncodedAtToken(EncodedText):
    """A tokenized text and the position whose output is explained."""

    read: int = field(kw_only=True)

    @property
    def key(self) -> str:
        return f"{self.ids} {self.read}"

    @property
    def fixed(self) -> tuple[bool, ...]:
        return tuple(i == self.read for i in range(len(self)))


@dataclass(frozen=True)
class RowsAtToken(TextRows):
    """A text with different tokens removed in each row, and the position whose output is explained."""

    read: np.ndarray = field(kw_only=True)


class AtToken(Reading):
    """A network with logits at every token, as a classifier at one position of each sample."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, read: Tensor, **inputs: Any) -> Answer:
        """Return the logits of each sample at its position `read`."""
        output = self.ask(input_ids=input_ids, attention_mask=attention_mask, **inputs)
        scores = getattr(output, "logits", None)
        if not isinstance(scores, Tensor) or scores.dim() != 3:
            raise Error(f"{type(self.network).__name__} returns no logits at every token: load it with such a head.")
        return self.answer(at_positions(scores, read), output)


class TextAtToken(Text):
    """Base class of tasks that explain the output at one token of a text, which `encode_all` chooses."""

    model: AtToken
    takes_pairs = takes_ordinal = checks_padding = False

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        name: str | None = None,
        *,
        head: str | None = None,
    ) -> None:
        super().__init__(model, tokenizer, name, head=head)
        self.model = AtToken(model)

    def batch(self, encoded: Sequence[Any]) -> dict[str, Tensor]:
        """Return a batch, padded on the right to the longest text, with the position of each text."""
        inputs = super().batch(encoded)
        read = torch.tensor([text.read for text in encoded])
        return {**inputs, "read": read.to(inputs["input_ids"].device, non_blocking=True)}

    def masked(self, encoded: Any, kept: np.ndarray, mask: str) -> RowsAtToken:
        rows = super().masked(encoded, kept, mask)
        return RowsAtToken(**vars(rows), read=np.full(len(rows), encoded.read))

    def stack(self, parts: Sequence[Any]) -> dict[str, Tensor]:
        inputs = super().stack(parts)
        read = torch.from_numpy(np.concatenate([part.read for part in parts]))
        return {**inputs, "read": read.to(inputs["input_ids"].device)}
