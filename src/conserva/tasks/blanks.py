"""Masked language modelling: the word that a model predicts for the mask token of a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ..datasets import Labelled
from ..errors import Error
from .encoded_text import EncodedText
from .model_kind import ModelKind
from .output_heads import SINGLE_LABEL
from .text_at_token import EncodedAtToken, TextAtToken
from .user_inputs import read_with_text_labels
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Blanks(TextAtToken):
    """A masked language model and its tokenizer; the classes are the vocabulary.

    An input is a text that contains the tokenizer's mask token once. A target is a word that is a single token, a token
    id, or a contrast of two.

    Parameters
    ----------
    model
        A model with a masked language modelling head, in evaluation mode.
    tokenizer
        Its tokenizer.
    name
        The name of the model in results.

    Examples
    --------
    >>> task = conserva.Blanks(model, tokenizer)  # doctest: +SKIP
    >>> conserva.explain(task, "Paris is the [MASK] of France.").target  # doctest: +SKIP
    'capital'
    """

    kind = ModelKind("masked language model", "AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES")

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str | None = None) -> None:
        super().__init__(model, tokenizer, name, head=SINGLE_LABEL.name)
        if tokenizer.mask_token_id is None:
            raise Error(f"The tokenizer of {self.name} has no mask token: give a masked language model.")
        self.vocabulary = Vocabulary(tokenizer)

    @property
    def labels(self) -> dict[str, int]:
        """Empty: targets are looked up with the tokenizer."""
        return {}

    @property
    def classes(self) -> int:
        """The size of the vocabulary."""
        return int(self.model.config.vocab_size)

    def labelled(self, data: Any) -> Labelled:
        """Return texts with the masked words, from a file or dataset name, texts, or (text, word) pairs."""
        given = read_with_text_labels(data) if isinstance(data, (str, Path)) else super().labelled(data)
        if given.labels is None:
            return given
        return Labelled(given.texts, tuple(self._token(label) for label in given.labels), given.source)

    def encode_all(self, texts: Sequence[str], *, truncate: bool = False) -> list[EncodedText]:
        """Tokenize texts, and find the mask token of each."""
        return [self._at_mask(encoded) for encoded in super().encode_all(texts, truncate=truncate)]

    def _at_mask(self, encoded: EncodedText) -> EncodedAtToken:
        mask = self.tokenizer.mask_token
        count = encoded.ids.count(self.tokenizer.mask_token_id)
        if count != 1:
            if mask in encoded.text and not count:
                raise Error(f"The text beginning {encoded.text[:40]!r} was truncated before its {mask}: shorten it.")
            has = f"{count} times {mask}: write it once" if count else f"no {mask}: write {mask}"
            raise Error(f"text={encoded.text!r:.60} has {has}, where the word is missing.")
        return EncodedAtToken(**vars(encoded), read=encoded.ids.index(self.tokenizer.mask_token_id))

    def resolve_target(self, target: Any, encoded: Any) -> Any:
        if isinstance(target, tuple):  # a contrast of two token ids
            return " - ".join(map(str, target))
        if not isinstance(target, str):
            return target
        parts = [target] if self._alone(target) is not None else target.split(" - ", 1)
        tokens = [self._token(part) for part in parts]
        return tokens[0] if len(tokens) == 1 else " - ".join(map(str, tokens))

    def target_name(self, target: Any, index: int | None) -> str:
        if isinstance(target, tuple):
            return " - ".join(self._token_texts[token] for token in target)
        return (
            super().target_name(target, index) if isinstance(target, str) or index is None else self._token_texts[index]
        )

    def _token(self, word: str | int) -> int:
        """Return the token id of a word."""
        if isinstance(word, int):
            return word
        token = self._alone(word)
        if token is None:
            pieces = ", ".join(repr(self._token_texts[piece]) for piece in self.vocabulary.pieces(word)) or "none"
            raise Error(
                f"target={word!r} is not a single token of {self.name}, its pieces are {pieces}: choose another word."
            )
        return token

    def _alone(self, word: str) -> int | None:
        """Return the token id of a word, preferably with a leading space; None if the word is several tokens."""
        bare = word.strip()
        if not bare:
            return None
        token = self.vocabulary.get(f" {bare}", self.vocabulary.get(bare))
        return self.tokenizer.get_vocab().get(bare) if token is None else token  # a raw entry, such as "##ing"
