"""Tokenized texts and pairs of texts, complete and with tokens removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .task import Encoded

if TYPE_CHECKING:
    from typing_extensions import Self

SECTIONS = ("first text", "second text")
"""The names of the two texts of a pair in an explanation."""


@dataclass(frozen=True)
class EncodedText(Encoded):
    """A tokenized text or pair of texts."""

    ids: tuple[int, ...]
    encoding: Any = field(default=None, repr=False, compare=False)
    """The `tokenizers.Encoding` of the text; None for a slow tokenizer."""
    token_types: tuple[int, ...] | None = field(default=None, kw_only=True)
    """The token type ids that the model gets; None if it gets none, or if they are its default."""

    @property
    def spans(self) -> tuple[tuple[int, int] | None, ...]:
        """The start and end characters of each token; None for special tokens and with slow tokenizers."""
        if self.encoding is None:
            return (None,) * len(self)
        offsets = zip(self.encoding.offsets, self.special, strict=True)
        return tuple(None if is_special else span for span, is_special in offsets)

    @property
    def offsets(self) -> tuple[tuple[int, int] | None, ...]:
        return self.spans

    @property
    def key(self) -> str:
        return str(self.ids)

    def part(self, chosen: Sequence[int]) -> Self:
        """Return a copy with some of the tokens, given by their indices; it has no offsets."""
        return replace(
            self,
            tokens=tuple(self.tokens[i] for i in chosen),
            special=tuple(self.special[i] for i in chosen),
            words=tuple(self.words[i] for i in chosen),
            unknown=tuple(self.unknown[i] for i in chosen),
            ids=tuple(self.ids[i] for i in chosen),
            encoding=None,
            token_types=None if self.token_types is None else tuple(self.token_types[i] for i in chosen),
        )


@dataclass(frozen=True)
class EncodedTextPair(EncodedText):
    """A pair of texts in one sequence: the features of the first, with its special tokens, then those of the second."""

    border: int = field(kw_only=True)
    """The index of the second text's first token."""
    start: int = field(kw_only=True)
    """The index of the second text's first character in `text`, which contains both."""
    names: tuple[str, str] = field(default=SECTIONS, kw_only=True)
    """The names of the two texts."""

    @property
    def spans(self) -> tuple[tuple[int, int] | None, ...]:
        first, second = super().spans[: self.border], super().spans[self.border :]
        return (*first, *(None if span is None else (self.start + span[0], self.start + span[1]) for span in second))

    @property
    def key(self) -> str:
        return f"{self.ids} {self.border}"

    def part(self, chosen: Sequence[int]) -> Self:
        return replace(super().part(chosen), border=sum(i < self.border for i in chosen))

    @property
    def sections(self) -> tuple[tuple[str, int], ...]:
        return ((self.names[0], self.border), (self.names[1], len(self) - self.border))
