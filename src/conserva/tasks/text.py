"""Classifying texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..datasets import Labelled, read_labelled
from ..datasets.graph_catalogue import GRAPH_DATASETS
from ..errors import Error
from .given import refuse_halves
from .masking import TextRows, mask_of, masked
from .task import Encoded, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROUNDED_TO = 16
"""To multiples of this the lengths of batches are rounded up on a GPU."""

_UNBOUNDED = 1_000_000
"""Tokenizers without a limit report an astronomical one."""


@dataclass(frozen=True)
class EncodedText(Encoded):
    """A text as the model sees it: its tokens, which of them the tokenizer added, and the words they belong to."""

    ids: tuple[int, ...]
    part: Any = field(default=None, repr=False, compare=False)
    """What a fast tokenizer knows of the text."""

    @property
    def spans(self) -> tuple[tuple[int, int] | None, ...]:
        """The characters that each token stands for; None for one that the tokenizer added, and if it does not tell."""
        if self.part is None:
            return (None,) * len(self)
        return tuple(None if own else span for span, own in zip(self.part.offsets, self.special, strict=True))

    @property
    def key(self) -> str:
        return str(self.ids)


class _TokenTexts(dict[int, str]):
    """What tokens stand for, looked up once each: byte-level tokenizers write letters in a code of their own."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str:
        token = self._tokenizer.convert_ids_to_tokens([token_id])[0]
        plain = self._tokenizer.convert_tokens_to_string([token]).strip()
        self[token_id] = plain if plain and "\ufffd" not in plain else str(token)
        return self[token_id]


class Text(Task):
    """A text classifier: a Hugging Face model and its tokenizer."""

    features = ("input_ids",)
    noun = "text"

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str | None = None) -> None:
        super().__init__(model, name)
        if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise Error(f"tokenizer={tokenizer!r} is no Hugging Face tokenizer.")
        self.tokenizer = tokenizer
        self._token_texts = _TokenTexts(tokenizer)

    @property
    def longest(self) -> int:
        """How many tokens the model takes."""
        limits = [
            getattr(self.tokenizer, "model_max_length", _UNBOUNDED),
            getattr(getattr(self.model, "config", None), "max_position_embeddings", _UNBOUNDED),
        ]
        return min(int(limit) for limit in limits if limit and limit > 0)

    def is_one(self, given: Any) -> bool:
        return isinstance(given, str)

    def labelled(self, data: Any) -> Labelled:
        """Return texts with their labels: of a file or dataset name, texts, or pairs of text and label."""
        if isinstance(data, Labelled):
            return data
        if isinstance(data, str) and data in GRAPH_DATASETS:
            raise Error(
                f"data={data!r} is a dataset of graphs, and {self.name} reads texts: name a model for graphs, or give "
                "a file of texts."
            )
        if isinstance(data, (str, Path)):
            return read_labelled(data)
        if not isinstance(data, Sequence) or not data:
            raise Error(f"data={data!r} holds no texts: give a file, a list of texts, or a list of (text, label).")
        if all(isinstance(one, str) for one in data):
            return Labelled(tuple(data), None, "texts")
        if all(isinstance(one, (tuple, list)) and len(one) == 2 for one in data):
            return Labelled(tuple(text for text, _ in data), tuple(label for _, label in data), "texts")
        raise Error("data is neither a list of texts nor a list of (text, label): its entries differ.")

    def encode(self, text: str, *, truncate: bool = False) -> EncodedText:
        """Turn a text into tokens; one that is too long is refused, or cut if `truncate` says so."""
        return self.encode_all([text], truncate=truncate)[0]

    def encode_all(self, texts: Sequence[str], *, truncate: bool = False) -> list[EncodedText]:
        """Turn texts into tokens, all in one call of the tokenizer."""
        for text in texts:
            if not isinstance(text, str):
                raise Error(f"text={text!r} is no string.")
            if not text.strip():
                raise Error(f"text={text!r} is empty: there is nothing to explain.")
            refuse_halves("text", text)
        if not texts:
            return []
        longest = self.longest
        most = longest if truncate else None
        # Not verbose: of texts that are too long it speaks itself, below.
        asked = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
        found = self.tokenizer(list(texts), truncation=truncate, max_length=most, **asked)
        added = set(self.tokenizer.all_special_ids)
        parts = found.encodings if getattr(found, "is_fast", False) else [None] * len(texts)
        return [
            self._encoded(text, list(ids), added, part, longest)
            for text, ids, part in zip(texts, found["input_ids"], parts, strict=True)
        ]

    def _encoded(self, text: str, ids: list[int], added: set[int], part: Any, longest: int) -> EncodedText:
        """Return a text as the model sees it; `part` is what a fast tokenizer knows about it."""
        if len(ids) > longest:
            raise Error(
                f"The text beginning {text[:40]!r} has {len(ids)} tokens, the model takes {longest}: shorten it, "
                "or let it be cut with truncate=True (--truncate)."
            )
        special = tuple(map(added.__contains__, ids))
        if all(special):
            raise Error(f"text={text!r} holds nothing that the tokenizer knows: there is nothing to explain.")
        words: Sequence[int | None] = range(len(ids)) if part is None else part.word_ids
        tokens = tuple(map(self._token_texts.__getitem__, ids))
        return EncodedText(text, tokens, special, tuple(words), tuple(ids), part)

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        return mask_of(self.tokenizer, given, preferred)

    def masked(self, encoded: EncodedText, kept: np.ndarray, mask: str) -> TextRows:
        return masked(self.tokenizer, np.array(encoded.ids), kept, mask)

    def stack(self, parts: Sequence[TextRows]) -> dict[str, Tensor]:
        width = max(part.width for part in parts)
        device = next(self.model.parameters()).device

        def side_by_side(arrays: list[np.ndarray], pad: int) -> Tensor:
            rows = [np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=pad) for one in arrays]
            return torch.from_numpy(np.concatenate(rows)).to(device)

        return {
            "input_ids": side_by_side([part.ids for part in parts], self.tokenizer.pad_token_id or 0),
            "attention_mask": side_by_side([part.attention for part in parts], 0),
        }

    def padded(self, length: int) -> int:
        """Return a length rounded up on a GPU: kernels are planned anew for every shape, and replays know few."""
        on_gpu = next(self.model.parameters()).is_cuda and self.tokenizer.pad_token_id is not None
        return min(-(-length // ROUNDED_TO) * ROUNDED_TO, max(length, self.longest)) if on_gpu else length

    def batch(self, encoded: Sequence[EncodedText]) -> dict[str, Tensor]:
        """Put texts side by side, padded on the right to the longest; one text by itself has no pads."""
        width = max(map(len, encoded))
        width = self.padded(width) if len(encoded) > 1 else width
        pad = self.tokenizer.pad_token_id
        if pad is None and any(len(one) < width for one in encoded):
            raise Error(f"The tokenizer of {self.name} has no pad token: explain one text at a time.")
        device = next(self.model.parameters()).device
        lengths = np.array([len(one) for one in encoded])
        real = np.arange(width) < lengths[:, None]
        rows = np.full(real.shape, pad or 0)
        rows[real] = np.fromiter(chain.from_iterable(one.ids for one in encoded), np.int64, int(lengths.sum()))
        inputs = {"input_ids": torch.from_numpy(rows), "attention_mask": torch.from_numpy(real.astype(np.int64))}
        # Other copies would wait for all that the device has to do.
        return {name: x.to(device, non_blocking=True) for name, x in inputs.items()}
