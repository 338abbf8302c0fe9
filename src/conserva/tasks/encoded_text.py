"""Texts and pairs of texts as a model sees them, whole and with tokens taken away."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .masking import TextRows
from .task import Encoded

SECTIONS = ("first", "second")
"""What the two texts of a pair are called in an explanation."""


@dataclass(frozen=True)
class EncodedText(Encoded):
    """A text, or a pair of them, as the model sees it: its tokens, those that the tokenizer added, and their words."""

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

    @property
    def token_types(self) -> tuple[int, ...] | None:
        """The token types (segments) that the model is told; None for a single text, where all are 0."""
        return None


@dataclass(frozen=True)
class EncodedTextPair(EncodedText):
    """A pair of texts in one sequence: the features of the first, with its special tokens, then those of the second."""

    border: int = field(kw_only=True)
    """Where among the features the second text begins."""
    start: int = field(kw_only=True)
    """Where it begins among the characters of `text`, which has both."""
    types: tuple[int, ...] | None = field(default=None, kw_only=True)
    """As the tokenizer tells them to the model; None where the model takes none."""

    @property
    def spans(self) -> tuple[tuple[int, int] | None, ...]:
        first, second = super().spans[: self.border], super().spans[self.border :]
        return (*first, *(None if span is None else (self.start + span[0], self.start + span[1]) for span in second))

    @property
    def token_types(self) -> tuple[int, ...] | None:
        return self.types

    @property
    def key(self) -> str:
        return f"{self.ids} {self.border}"

    @property
    def sections(self) -> tuple[tuple[str, int], ...]:
        return ((SECTIONS[0], self.border), (SECTIONS[1], len(self) - self.border))


@dataclass(frozen=True)
class TypedRows(TextRows):
    """A pair of texts with other tokens taken away in each row; the types of the tokens stay."""

    types: np.ndarray

    def __getitem__(self, rows: slice | np.ndarray) -> TypedRows:
        return TypedRows(self.ids[rows], self.attention[rows], self.types[rows])

    def keys(self) -> np.ndarray:
        """Return ids, attention and types of each row."""
        return np.concatenate([super().keys(), np.ascontiguousarray(self.types).view(np.uint8)], axis=1)
