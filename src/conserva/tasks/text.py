"""Classifying texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import Error
from ..fingerprint import fingerprint
from ..targets import labels_of
from .masking import mask_of, masked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_UNBOUNDED = 1_000_000
"""Tokenizers without a limit report an astronomical one."""


@dataclass(frozen=True)
class Encoded:
    """A text as the model sees it: its tokens, which of them the tokenizer added, and the words they belong to."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    words: tuple[int | None, ...]

    def __len__(self) -> int:
        return len(self.ids)


class Text:
    """A text classifier: a Hugging Face model and its tokenizer."""

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise Error(f"model={model!r} is no torch.nn.Module.")
        if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise Error(f"tokenizer={tokenizer!r} is no Hugging Face tokenizer.")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name or getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights: the same for the same model, wherever it was loaded from."""
        return fingerprint(self.model)

    @property
    def labels(self) -> dict[str, int]:
        """The model's labels and their class indices."""
        return labels_of(self.model)

    @property
    def longest(self) -> int:
        """How many tokens the model takes."""
        limits = [
            getattr(self.tokenizer, "model_max_length", _UNBOUNDED),
            getattr(getattr(self.model, "config", None), "max_position_embeddings", _UNBOUNDED),
        ]
        return min(int(limit) for limit in limits if limit and limit > 0)

    def encode(self, text: str, *, truncate: bool = False) -> Encoded:
        """Turn a text into tokens; one that is too long is refused, or cut if `truncate` says so."""
        if not isinstance(text, str):
            raise Error(f"text={text!r} is no string.")
        if not text.strip():
            raise Error(f"text={text!r} is empty: there is nothing to explain.")
        encoding = self.tokenizer(text, truncation=truncate, max_length=self.longest if truncate else None)
        ids = list(encoding["input_ids"])
        if len(ids) > self.longest:
            raise Error(
                f"The text beginning {text[:40]!r} has {len(ids)} tokens, the model takes {self.longest}: shorten it, "
                "or let it be cut with truncate=True (--truncate)."
            )
        special = [bool(mask) for mask in self.tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)]
        if all(special):
            raise Error(f"text={text!r} holds nothing that the tokenizer knows: there is nothing to explain.")
        words = encoding.word_ids() if getattr(encoding, "is_fast", False) else list(range(len(ids)))
        return Encoded(text, tuple(ids), tuple(self._token_texts(ids)), tuple(special), tuple(words))

    def _token_texts(self, ids: Sequence[int]) -> Iterator[str]:
        """Yield what every token stands for: byte-level tokenizers write letters in a code of their own."""
        for token in self.tokenizer.convert_ids_to_tokens(list(ids)):
            plain = self.tokenizer.convert_tokens_to_string([token]).strip()
            yield plain if plain and "\ufffd" not in plain else str(token)

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        """Return what stands for tokens that are taken away: what was given, or the first preferred one there is."""
        return mask_of(self.tokenizer, given, preferred)

    def masked(self, encoded: Encoded, kept: np.ndarray, mask: str) -> dict[str, np.ndarray]:
        """Return the text as the model sees it with some tokens taken away: for each row those that are kept."""
        return masked(self.tokenizer, np.array(encoded.ids), kept, mask)

    def stack(self, parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Tensor]:
        """Put what `masked` made of several texts side by side, padded on the right to the longest."""
        width = max(part["input_ids"].shape[1] for part in parts)
        pads = {"input_ids": self.tokenizer.pad_token_id or 0, "attention_mask": 0}
        device = next(self.model.parameters()).device
        stacked = {}
        for name, pad in pads.items():
            rows = [
                np.pad(part[name], ((0, 0), (0, width - part[name].shape[1])), constant_values=pad) for part in parts
            ]
            stacked[name] = torch.from_numpy(np.concatenate(rows)).to(device)
        return stacked

    def batch(self, encoded: Sequence[Encoded]) -> dict[str, Tensor]:
        """Put texts side by side, padded on the right to the longest."""
        width = max(map(len, encoded))
        pad = self.tokenizer.pad_token_id
        if pad is None and any(len(one) < width for one in encoded):
            raise Error(f"The tokenizer of {self.name} has no pad token: explain one text at a time.")
        device = next(self.model.parameters()).device
        rows = [list(one.ids) + [pad or 0] * (width - len(one)) for one in encoded]
        real = [[1] * len(one) + [0] * (width - len(one)) for one in encoded]
        return {"input_ids": torch.tensor(rows, device=device), "attention_mask": torch.tensor(real, device=device)}
