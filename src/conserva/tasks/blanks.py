"""Masked words: what a model puts where a word of a text is missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ..datasets import Labelled
from ..errors import Error
from .encoded_text import EncodedText
from .input_options import words_in
from .output_heads import SINGLE_LABEL
from .places import EncodedAtPlace, TextAtPlace
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Blanks(TextAtPlace):
    """A masked language model, asked for the word that is missing in a text: its classes are the vocabulary.

    An input is a text with the tokenizer's mask token where the word is missing. A target is a word that is one token,
    a token's number, or a contrast of two.
    """

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str | None = None) -> None:
        super().__init__(model, tokenizer, name, head=SINGLE_LABEL.name)
        if tokenizer.mask_token_id is None:
            raise Error(f"The tokenizer of {self.name} has no mask token: the model was not trained to fill in words.")
        self.vocabulary = Vocabulary(tokenizer)

    @property
    def labels(self) -> dict[str, int]:
        """None: words are looked up by the tokenizer."""
        return {}

    @property
    def classes(self) -> int:
        """How many tokens the model chooses from."""
        return int(self.model.config.vocab_size)

    def labelled(self, data: Any) -> Labelled:
        """Return texts with the words that are missing: of a file or dataset name, texts, or (text, word)."""
        found = words_in(data) if isinstance(data, (str, Path)) else super().labelled(data)
        if found.labels is None:
            return found
        return Labelled(found.texts, tuple(self._token(label) for label in found.labels), found.source)

    def encode_all(self, texts: Sequence[str], *, truncate: bool = False) -> list[EncodedText]:
        """Turn texts into tokens, and find the one that stands for the missing word."""
        return [self._at(one) for one in super().encode_all(texts, truncate=truncate)]

    def _at(self, one: EncodedText) -> EncodedAtPlace:
        mask = self.tokenizer.mask_token
        there = one.ids.count(self.tokenizer.mask_token_id)
        if there != 1:
            if mask in one.text and not there:
                raise Error(f"The text beginning {one.text[:40]!r} was cut before its {mask}: shorten it yourself.")
            has = f"{there} times {mask}: write it once" if there else f"no {mask}: write {mask}"
            raise Error(f"text={one.text!r:.60} has {has}, where the word is missing.")
        return EncodedAtPlace(**vars(one), read=one.ids.index(self.tokenizer.mask_token_id))

    def aim(self, target: Any, encoded: Any) -> Any:
        if isinstance(target, tuple):  # one token rather than another, by their ids
            return " - ".join(map(str, target))
        if not isinstance(target, str):
            return target
        parts = [target] if self._alone(target) is not None else target.split(" - ", 1)
        tokens = [self._token(part) for part in parts]
        return tokens[0] if len(tokens) == 1 else " - ".join(map(str, tokens))

    def named(self, target: Any, index: int | None) -> str:
        if isinstance(target, tuple):
            return " - ".join(self._token_texts[one] for one in target)
        return super().named(target, index) if isinstance(target, str) or index is None else self._token_texts[index]

    def _token(self, word: str | int) -> int:
        """Return the token that a word is."""
        if isinstance(word, int):
            return word
        found = self._alone(word)
        if found is None:
            pieces = ", ".join(repr(self._token_texts[one]) for one in self.vocabulary.pieces(word)) or "none"
            raise Error(
                f"target={word!r} is not a single token of {self.name}, its pieces are {pieces}: choose another word."
            )
        return found

    def _alone(self, word: str) -> int | None:
        """Return the token that a word is, behind a space if there is such a token; None if it is several."""
        bare = word.strip()
        if not bare:
            return None
        found = self.vocabulary.get(f" {bare}", self.vocabulary.get(bare))
        return self.tokenizer.get_vocab().get(bare) if found is None else found  # a piece, in the tokenizer's own marks
