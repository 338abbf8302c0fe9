"""Token classification, explained at one word of a text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from .._util.asked_word import with_asked_word
from ..datasets import Labelled
from ..engine.untouched import untouched
from ..errors import Error
from .batches import budget, by_length
from .encoded_text import EncodedText
from .model_kind import ModelKind
from .text_at_token import EncodedAtToken, TextAtToken
from .user_inputs import labelled_inputs

OUTSIDE = "O"
"""The label of words outside of all entities."""


class Tokens(TextAtToken):
    """A token classifier and its tokenizer, explained at the first token of one word.

    An input is (text, word), where the word is given as text that occurs once, or as its index in `Explanation.words`;
    or a text alone, for the first word whose predicted label is not "O". For a model without that label, it is the
    first word whose label is not the most frequent one.

    Parameters
    ----------
    model
        A model with a token classification head, in evaluation mode.
    tokenizer
        Its tokenizer.
    name
        The name of the model in results.
    head
        The kind of output head, if the configuration does not describe it: "single_label", "multi_label", "binary",
        "regression".

    Examples
    --------
    >>> task = conserva.Tokens(model, tokenizer)  # doctest: +SKIP
    >>> conserva.explain(task, ("Ada lives in Paris.", "Paris")).target  # doctest: +SKIP
    'LOC'
    """

    kind = ModelKind(
        "token classifier",
        "AutoModelForTokenClassification",
        "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
        classifies=True,
    )

    def is_single(self, given: Any) -> bool:
        return isinstance(given, str) or (
            isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and _names_word(given[1])
        )

    def labelled(self, data: Any) -> Labelled:
        """Return texts and words with labels, from a list of texts, (text, word) or ((text, word), label)."""
        return labelled_inputs(self, data, "(text, word)")

    def encode_all(self, texts: Sequence[Any], *, truncate: bool = False) -> list[EncodedText]:
        """Tokenize texts, and find the first token of the word to explain in each."""
        pairs = [(given, None) if isinstance(given, str) else _pair(given) for given in texts]
        encoded = super().encode_all([text for text, _ in pairs], truncate=truncate)
        without_word = [i for i, (_, word) in enumerate(pairs) if word is None]
        chosen = dict(zip(without_word, self._first_entities([encoded[i] for i in without_word]), strict=True))
        return [
            self._at(text, chosen[i] if word is None else self._position(text, word))
            for i, (text, (_, word)) in enumerate(zip(encoded, pairs, strict=True))
        ]

    def _at(self, encoded: EncodedText, position: int) -> EncodedAtToken:
        """Return a text explained at a position, with the word there in its description."""
        pieces = [i for i, word in enumerate(encoded.words) if word is not None and word == encoded.words[position]]
        spans = [span for span in (encoded.spans[i] for i in pieces) if span is not None]
        shown = encoded.text[spans[0][0] : spans[-1][1]].strip() if spans else encoded.tokens[position]
        return EncodedAtToken(**{**vars(encoded), "text": with_asked_word(encoded.text, shown)}, read=position)

    def _position(self, encoded: EncodedText, word: str | int) -> int:
        """Return the position of the first token of a word."""
        if isinstance(word, int):
            numbers = [number for number in encoded.words if number is not None]
            if word not in numbers:
                raise Error(
                    f"word={word}: the text beginning {encoded.text[:40]!r} has words 0 to {max(numbers)}. Choose one "
                    "of them."
                )
            return encoded.words.index(word)
        if encoded.encoding is None:
            raise Error(
                f"word={word!r}: the tokenizer of {self.name} does not return offsets of its tokens. Give the token's "
                "number instead."
            )
        matches = [_overlapping(encoded, *match.span()) for match in re.finditer(whole_word(word), encoded.text)]
        positions = sorted({tokens[0] for tokens in matches if tokens})
        if len(positions) > 1:
            raise Error(
                f"word={word!r} occurs {len(positions)} times in the text beginning {encoded.text[:40]!r}: give the "
                f"number of one, such as {encoded.words[positions[0]]} or {encoded.words[positions[1]]}."
            )
        if not positions:
            raise Error(
                f"word={word!r} is not a word of the text beginning {encoded.text[:40]!r}, or was truncated with its "
                "end: write it as in the text, or give its number. Give several texts as a list."
            )
        return positions[0]

    def _first_entities(self, encoded: Sequence[EncodedText]) -> list[int]:
        """Return for each text the position of the first word with an entity label."""
        positions = [-1] * len(encoded)
        for rows in by_length([len(text) for text in encoded], budget(None, self.model)):
            group = [encoded[i] for i in rows]
            inputs = super(TextAtToken, self).batch(group)
            with untouched(self.network), torch.inference_mode():
                predicted = self.network(**inputs).logits.argmax(-1).tolist()
            for i, text, labels in zip(rows, group, predicted, strict=True):
                positions[i] = self._first_entity(text, labels)
        return positions

    def _first_entity(self, encoded: EncodedText, labels: Sequence[int]) -> int:
        """Return the position of the first word whose label is not "O", or not the most frequent one."""
        begins = [
            i
            for i, (word, special) in enumerate(zip(encoded.words, encoded.special, strict=True))
            if word is not None and not special and encoded.words.index(word) == i
        ]
        usual = self.labels.get(OUTSIDE, Counter(labels[i] for i in begins).most_common(1)[0][0])
        entities = [i for i in begins if labels[i] != usual]
        if not entities:
            raise Error(
                f"{self.name} labels every word of the text beginning {encoded.text[:40]!r} as "
                f"{self.target_name(None, usual)!r}: choose a word, with (text, word)."
            )
        return entities[0]


def _names_word(given: Any) -> bool:
    return isinstance(given, (str, int)) and not isinstance(given, bool)


def _pair(given: Any) -> tuple[str, str | int]:
    if not isinstance(given, (tuple, list)) or len(given) != 2 or not _names_word(given[1]):
        raise Error(f"text={given!r:.60} is neither a text nor (text, word): give a word or its number with the text.")
    text, word = given
    if isinstance(word, str) and not word.strip():
        raise Error(f"word={word!r} of the text {text!r:.40} is empty: write a word, or give its number.")
    return text, word.strip() if isinstance(word, str) else word


def _overlapping(encoded: EncodedText, start: int, end: int) -> list[int]:
    """Return the positions of tokens that overlap with the characters from start to end."""
    return [i for i, span in enumerate(encoded.spans) if span is not None and span[0] < end and start < span[1]]


def whole_word(word: str) -> str:
    """Return a pattern that matches a word, but not as a part of a longer word."""
    before, after = (r"\b" if re.match(r"\w", end) else "" for end in (word[0], word[-1]))
    return before + re.escape(word) + after
