"""Sentence encoders: why two texts are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from ..datasets import Labelled
from ..errors import Error
from .encoded_text import EncodedText
from .input_options import inputs_of
from .masking import TextRows
from .output_heads import SINGLE_LABEL
from .reading import Answer, Reading
from .task import Encoded, Task
from .text import Text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

POOLINGS = ("mean", "cls")
"""How a text becomes one vector: the mean of its tokens' last states, or the first token's."""

SCORES = {"cosine": "cosine similarity", "dot": "dot product"}
"""How alike two vectors are, and what that is called."""

_OTHER = "other_"
"""What the names of the second text's inputs begin with."""


@dataclass(frozen=True)
class EncodedPair(Encoded):
    """Two texts as the model sees them, each for itself."""

    first: EncodedText = field(repr=False)
    second: EncodedText = field(repr=False)

    @property
    def parts(self) -> tuple[int, ...]:
        return (len(self.first), len(self.second))

    @property
    def key(self) -> str:
        return f"{self.first.key} {self.second.key}"

    @property
    def sections(self) -> tuple[tuple[str, int], ...]:
        return (("first", len(self.first)), ("second", len(self.second)))


@dataclass(frozen=True)
class PairRows:
    """Two texts with other tokens taken away in each row."""

    first: TextRows
    second: TextRows

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, rows: slice | np.ndarray) -> PairRows:
        return PairRows(self.first[rows], self.second[rows])

    @property
    def width(self) -> int:
        """How many tokens both texts have."""
        return self.first.width + self.second.width

    def keys(self) -> np.ndarray:
        """Return ids and attention of each row, and how many of them are the first text's."""
        border = np.full((len(self), 1), self.first.width).view(np.uint8)
        return np.concatenate([border, self.first.keys(), self.second.keys()], axis=1)


class Alike(Reading):
    """An encoder of texts, read as one number: how alike its vectors of two texts are."""

    def __init__(self, network: nn.Module, pooling: str, score: str) -> None:
        super().__init__(network)
        self.pooling, self.score = pooling, score

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, other_input_ids: Tensor, other_attention_mask: Tensor
    ) -> Answer:
        """Return the similarity of each pair of texts."""
        # A product of two live vectors: the rule for products shares it out. Their lengths are a norm's scale.
        first, second = self.vector(input_ids, attention_mask), self.vector(other_input_ids, other_attention_mask)
        if self.score == "cosine":
            first, second = F.normalize(first, dim=-1), F.normalize(second, dim=-1)
        return Answer((first * second).sum(-1, keepdim=True))

    def vector(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the vectors of texts."""
        output = self.ask(input_ids=input_ids, attention_mask=attention_mask)
        states = getattr(output, "last_hidden_state", None)
        if not isinstance(states, Tensor):
            raise Error(f"{type(self.network).__name__} gives no states of its tokens: load it with AutoModel.")
        if self.pooling == "cls":
            return states[:, 0]
        weights = attention_mask.to(states) / attention_mask.sum(1, keepdim=True)
        return (states * weights.unsqueeze(-1)).sum(1)


class Similarity(Task):
    """A sentence encoder, asked how alike two texts are: an input is (text, text).

    The number that is explained is the cosine of the texts' vectors, or with `score` "dot" their dot product. It is
    a product of what both texts became: under `exact` each text gets half, and the ledger closes. Rule sets that
    differentiate products count it twice.
    """

    features = ("input_ids", "other_input_ids")
    noun = "pair of texts"

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        name: str | None = None,
        *,
        pooling: str = "mean",
        score: str = "cosine",
    ) -> None:
        if pooling not in POOLINGS:
            raise Error(f"pooling={pooling!r} is none of {', '.join(POOLINGS)}.")
        if score not in SCORES:
            raise Error(f"score={score!r} is none of {', '.join(SCORES)}.")
        self.text = Text(model, tokenizer, head=SINGLE_LABEL.name)
        super().__init__(Alike(model, pooling, score), name)
        self.score = score

    @property
    def preprocessors(self) -> Mapping[str, Any]:
        return self.text.preprocessors

    @property
    def options(self) -> Mapping[str, Any]:
        assert isinstance(self.model, Alike)
        return {"pooling": self.model.pooling, "score": self.score}

    @property
    def labels(self) -> dict[str, int]:
        """None: the answer is a number."""
        return {}

    @property
    def classes(self) -> int:
        """One: the answer is a number."""
        return 1

    def is_one(self, given: Any) -> bool:
        return isinstance(given, tuple) and len(given) == 2 and all(isinstance(text, str) for text in given)

    def labelled(self, data: Any) -> Labelled:
        """Return pairs of texts, of a list of them."""
        return inputs_of(self, data, "(text, text)")

    def encode(self, given: Any, *, truncate: bool = False) -> EncodedPair:
        """Turn two texts into tokens; one that is too long is refused, or cut if `truncate` says so."""
        return self.encode_all([given], truncate=truncate)[0]

    def encode_all(self, many: Sequence[Any], *, truncate: bool = False) -> list[EncodedPair]:
        """Turn pairs of texts into tokens, all in one call of the tokenizer."""
        for given in many:
            if not isinstance(given, (tuple, list)) or len(given) != 2:
                raise Error(f"{given!r:.60} is not a pair of texts: give (text, text).")
            for text in given:
                if not isinstance(text, str):
                    raise Error(f"text={text!r:.60} is not a string: give (text, text).")
        each = self.text.encode_all([text for pair in many for text in pair], truncate=truncate)
        return [_pair(first, second) for first, second in zip(each[::2], each[1::2], strict=True)]

    def aim(self, target: Any, encoded: Any) -> Any:
        """Return where the one number stands; it is the only target there is."""
        if target is not None:
            raise Error(f"target={target!r}: the {SCORES[self.score]} is one number, leave the target out.")
        return (0,)

    def named(self, target: Any, index: int | None) -> str:
        return SCORES[self.score]

    def padded(self, length: int) -> int:
        return self.text.padded(length)

    def batch(self, encoded: Sequence[EncodedPair]) -> dict[str, Tensor]:
        """Put pairs side by side, the first texts and the second ones, each padded on the right to the longest."""
        first, second = [one.first for one in encoded], [one.second for one in encoded]
        return _both(self.text.batch(first), self.text.batch(second))

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        return self.text.mask(given, preferred)

    def masked(self, encoded: EncodedPair, kept: np.ndarray, mask: str) -> PairRows:
        border = len(encoded.first)
        first = self.text.masked(encoded.first, kept[:, :border], mask)
        return PairRows(first, self.text.masked(encoded.second, kept[:, border:], mask))

    def stack(self, parts: Sequence[PairRows]) -> dict[str, Tensor]:
        first, second = [part.first for part in parts], [part.second for part in parts]
        return _both(self.text.stack(first), self.text.stack(second))


def _pair(first: EncodedText, second: EncodedText) -> EncodedPair:
    tokens, special, words = first.tokens + second.tokens, first.special + second.special, first.words + second.words
    return EncodedPair(f"{first.text} | {second.text}", tokens, special, words, first, second)


def _both(first: dict[str, Tensor], second: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**first, **{f"{_OTHER}{name}": x for name, x in second.items()}}
