"""Classifying texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..datasets import Labelled, read_labelled
from ..datasets.graph_catalogue import GRAPH_DATASETS
from ..engine.inputs import parameters_of
from ..engine.untouched import untouched
from ..errors import Error
from .classifier import Classifier
from .encoded_text import EncodedText, EncodedTextPair, TypedRows
from .input_options import refuse_halves
from .masking import TextRows, mask_of, masked
from .output_heads import ORDINAL, ClassScores
from .text_pairs import TextPair, border_of, is_text_pair, labelled_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROUNDED_TO = 16
"""To multiples of this the lengths of batches are rounded up on a GPU."""

_UNBOUNDED = 1_000_000
"""Tokenizers without a limit report an astronomical one."""


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


class Text(Classifier):
    """A text classifier or regressor: a Hugging Face model and its tokenizer.

    An input is a text, or a pair of texts as a tuple of two strings, which the model reads as one sequence. `head` says
    what the logits are where the configuration does not: "single_label", "multi_label", "binary", "regression" or
    "ordinal".
    """

    features = ("input_ids",)
    noun = "text"
    takes_pairs: ClassVar[bool] = True
    """Whether a pair of texts is an input."""
    takes_ordinal = True

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        name: str | None = None,
        *,
        head: str | None = None,
    ) -> None:
        super().__init__(model, name, head)
        if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise Error(f"tokenizer={tokenizer!r} is no Hugging Face tokenizer.")
        self.tokenizer = tokenizer
        self._token_texts = _TokenTexts(tokenizer)
        if self.head is ORDINAL:
            self.model = ClassScores(model, self._thresholds())

    def _thresholds(self) -> int:
        """Return how many logits the model gives: a configuration may count classes or thresholds."""
        device = next(self.model.parameters()).device
        asked = self.tokenizer("a", return_tensors="pt", return_token_type_ids=False).to(device)
        with untouched(self.model), torch.no_grad():
            return int(self.model(**asked).logits.shape[-1])

    @property
    def longest(self) -> int:
        """How many tokens the model takes."""
        limits = [
            getattr(self.tokenizer, "model_max_length", _UNBOUNDED),
            getattr(getattr(self.model, "config", None), "max_position_embeddings", _UNBOUNDED),
        ]
        return min(int(limit) for limit in limits if limit and limit > 0)

    @property
    def tells_types(self) -> bool:
        """Whether the model is told which token belongs to which text of a pair."""
        kinds = getattr(getattr(self.network, "config", None), "type_vocab_size", None)
        asked = getattr(self.tokenizer, "model_input_names", ())
        return "token_type_ids" in asked and "token_type_ids" in parameters_of(self.network) and kinds not in (0, 1)

    def is_one(self, given: Any) -> bool:
        return isinstance(given, str) or (self.takes_pairs and is_text_pair(given))

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
        if self.takes_pairs and is_text_pair(data):
            raise Error(
                f"data={data!r:.60} may be a pair or two texts: write [((text, text), None)], or a list of texts."
            )
        if all(isinstance(one, str) for one in data):
            return Labelled(tuple(data), None, "texts")
        if all(isinstance(one, (tuple, list)) and len(one) == 2 for one in data):
            if self.takes_pairs:
                return labelled_of(data, list(self.labels))
            return Labelled(tuple(text for text, _ in data), tuple(label for _, label in data), "texts")
        raise Error("data is neither a list of texts nor a list of (text, label): its entries differ.")

    def encode(self, text: str | TextPair, *, truncate: bool = False) -> EncodedText:
        """Turn a text or a pair into tokens; one that is too long is refused, or cut if `truncate` says so."""
        return self.encode_all([text], truncate=truncate)[0]

    def encode_all(self, texts: Sequence[Any], *, truncate: bool = False) -> list[EncodedText]:
        """Turn texts into tokens, all in one call of the tokenizer, and all pairs in another.

        Of a pair that is too long, the longer text is cut first.
        """
        for text in texts:
            self._check(text)
        found: dict[int, EncodedText] = {}
        for pairs in (False, True):
            rows = [i for i, text in enumerate(texts) if isinstance(text, tuple) == pairs]
            found.update(zip(rows, self._tokenized([texts[i] for i in rows], pairs, truncate), strict=True))
        return [found[i] for i in range(len(texts))]

    def _check(self, text: Any) -> None:
        """Refuse what is neither a text nor, where the task takes them, a pair of texts."""
        if not self.is_one(text):
            if not isinstance(text, (tuple, list)):
                raise Error(f"text={text!r} is not a string.")
            takes = "a text, or a pair of texts as (text, text)" if self.takes_pairs else "a text by itself"
            raise Error(f"text={text!r:.60}: {self.name} takes {takes}. Several inputs come as a list of them.")
        for one in text if isinstance(text, tuple) else (text,):
            if not one.strip():
                whole = "" if one is text else f" in the pair {text!r:.60}"
                raise Error(f"text={one!r}{whole} is empty: there is nothing to explain.")
            refuse_halves("text", one)

    def _tokenized(self, texts: Sequence[Any], pairs: bool, truncate: bool) -> list[EncodedText]:
        """Return texts, or pairs of them, as the model sees them."""
        if not texts:
            return []
        longest = self.longest
        most = longest if truncate else None
        # Not verbose: of texts that are too long it speaks itself, below.
        asked = {"return_attention_mask": False, "return_token_type_ids": pairs, "verbose": False}
        given = [list(one) for one in zip(*texts, strict=True)] if pairs else [list(texts)]
        found = self.tokenizer(*given, truncation=truncate, max_length=most, **asked)
        added = set(self.tokenizer.all_special_ids)
        parts = found.encodings if getattr(found, "is_fast", False) else [None] * len(texts)
        names = [" | ".join(text) if pairs else text for text in texts]
        encoded = [
            self._encoded(name, list(ids), added, part, longest)
            for name, ids, part in zip(names, found["input_ids"], parts, strict=True)
        ]
        if not pairs:
            return encoded
        types = found.get("token_type_ids") or [None] * len(texts)
        return [self._as_pair(text, one, its) for text, one, its in zip(texts, encoded, types, strict=True)]

    def _as_pair(self, texts: TextPair, one: EncodedText, types: Sequence[int] | None) -> EncodedTextPair:
        """Return a pair that was encoded, with its border and the types that the model takes."""
        border = border_of(one.part, types)
        if border is None and one.part is None:
            raise Error(
                f"The tokenizer of {self.name} does not tell which tokens are of which text of a pair: load a fast "
                "one, with AutoTokenizer."
            )
        if border is None or all(one.special[:border]) or all(one.special[border:]):
            raise Error(
                f"The pair {texts!r:.60} has a text that holds nothing that the tokenizer knows, or that was cut off "
                "whole: both must have tokens."
            )
        its = tuple(types) if types is not None and self.tells_types else None
        return EncodedTextPair(**vars(one), border=border, start=len(one.text) - len(texts[1]), types=its)

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
        rows = masked(self.tokenizer, np.array(encoded.ids), kept, mask)
        if encoded.token_types is None:
            return rows
        return TypedRows(rows.ids, rows.attention, np.broadcast_to(np.array(encoded.token_types, np.int64), kept.shape))

    def stack(self, parts: Sequence[TextRows]) -> dict[str, Tensor]:
        width = max(part.width for part in parts)
        device = next(self.model.parameters()).device

        def side_by_side(arrays: list[np.ndarray], pad: int) -> Tensor:
            rows = [np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=pad) for one in arrays]
            return torch.from_numpy(np.concatenate(rows)).to(device)

        inputs = {
            "input_ids": side_by_side([part.ids for part in parts], self.tokenizer.pad_token_id or 0),
            "attention_mask": side_by_side([part.attention for part in parts], 0),
        }
        if any(isinstance(part, TypedRows) for part in parts):
            types = [part.types if isinstance(part, TypedRows) else np.zeros_like(part.ids) for part in parts]
            inputs["token_type_ids"] = side_by_side(types, 0)
        return inputs

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
        if any(one.token_types is not None for one in encoded):
            types = np.zeros_like(rows)
            types[real] = np.fromiter(chain(*(one.token_types or (0,) * len(one) for one in encoded)), np.int64)
            inputs["token_type_ids"] = torch.from_numpy(types)
        # Other copies would wait for all that the device has to do.
        return {name: x.to(device, non_blocking=True) for name, x in inputs.items()}
