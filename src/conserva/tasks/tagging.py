"""Token classification: what a model calls one word of a text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from ..datasets import Labelled
from ..engine.untouched import untouched
from ..errors import Error
from .batches import budget, by_length
from .encoded_text import EncodedText
from .input_options import inputs_of
from .places import EncodedAtPlace, TextAtPlace

OUTSIDE = "O"
"""The label of words that are nothing in particular."""


class Tokens(TextAtPlace):
    """A token classifier, asked about one word of a text, at its first token.

    An input is (text, word), where the word is written out, as it stands first in the text, or counted as in
    `Explanation.words`; or a text alone, for the first word that the model calls something else than "O". A model
    without that label is asked about the first word that it calls something else than most of them.
    """

    def is_one(self, given: Any) -> bool:
        return isinstance(given, str) or (
            isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and _names_word(given[1])
        )

    def labelled(self, data: Any) -> Labelled:
        """Return texts and words with the words' labels: of a list of texts, (text, word) or ((text, word), label)."""
        return inputs_of(self, data, "(text, word)")

    def encode_all(self, texts: Sequence[Any], *, truncate: bool = False) -> list[EncodedText]:
        """Turn texts into tokens, and find the tokens of the words that are asked about."""
        pairs = [(given, None) if isinstance(given, str) else _pair(given) for given in texts]
        encoded = super().encode_all([text for text, _ in pairs], truncate=truncate)
        open_ones = [i for i, (_, word) in enumerate(pairs) if word is None]
        chosen = dict(zip(open_ones, self._first_found([encoded[i] for i in open_ones]), strict=True))
        return [
            self._at(one, chosen[i] if word is None else self._place(one, word))
            for i, (one, (_, word)) in enumerate(zip(encoded, pairs, strict=True))
        ]

    def _at(self, one: EncodedText, place: int) -> EncodedAtPlace:
        """Return a text that is read at a token, and says so."""
        pieces = [i for i, word in enumerate(one.words) if word is not None and word == one.words[place]]
        spans = [span for span in (one.spans[i] for i in pieces) if span is not None]
        shown = one.text[spans[0][0] : spans[-1][1]].strip() if spans else one.tokens[place]
        return EncodedAtPlace(**{**vars(one), "text": f"{one.text} [word: {shown}]"}, read=place)

    def _place(self, one: EncodedText, word: str | int) -> int:
        """Return the first token of a word."""
        if isinstance(word, int):
            counted = [number for number in one.words if number is not None]
            if word not in counted:
                raise Error(
                    f"word={word}: the text beginning {one.text[:40]!r} has words 0 to {max(counted)}, and cannot be "
                    "asked about another."
                )
            return one.words.index(word)
        if one.part is None:
            raise Error(
                f"word={word!r}: the tokenizer of {self.name} does not tell where its tokens stand in a text: give the "
                "token's number."
            )
        found = [_overlapping(one, *match.span()) for match in re.finditer(whole(word), one.text)]
        places = sorted({each[0] for each in found if each})
        if len(places) > 1:
            raise Error(
                f"word={word!r} stands {len(places)} times in the text beginning {one.text[:40]!r}: give the number of "
                f"the one that is meant, as {one.words[places[0]]} or {one.words[places[1]]}."
            )
        if not places:
            raise Error(
                f"word={word!r} is not a word of the text beginning {one.text[:40]!r}, or was cut off with its end: "
                "write it as it stands there, or give its number. Several texts come as a list."
            )
        return places[0]

    def _first_found(self, encoded: Sequence[EncodedText]) -> list[int]:
        """Return for each text the first word that the model calls something of note."""
        places = [-1] * len(encoded)
        for rows in by_length([len(one) for one in encoded], budget(None, self.model)):
            group = [encoded[i] for i in rows]
            inputs = super(TextAtPlace, self).batch(group)
            with untouched(self.network), torch.inference_mode():
                found = self.network(**inputs).logits.argmax(-1).tolist()
            for i, one, labels in zip(rows, group, found, strict=True):
                places[i] = self._notable(one, labels)
        return places

    def _notable(self, one: EncodedText, labels: Sequence[int]) -> int:
        """Return the first token, of those that begin a word, whose label is another than the usual one."""
        begins = [
            i
            for i, (word, special) in enumerate(zip(one.words, one.special, strict=True))
            if word is not None and not special and one.words.index(word) == i
        ]
        usual = self.labels.get(OUTSIDE, Counter(labels[i] for i in begins).most_common(1)[0][0])
        notable = [i for i in begins if labels[i] != usual]
        if not notable:
            raise Error(
                f"{self.name} calls every word of the text beginning {one.text[:40]!r} {self.named(None, usual)!r}: "
                "say which one is asked about, as (text, word)."
            )
        return notable[0]


def _names_word(given: Any) -> bool:
    return isinstance(given, (str, int)) and not isinstance(given, bool)


def _pair(given: Any) -> tuple[str, str | int]:
    if not isinstance(given, (tuple, list)) or len(given) != 2 or not _names_word(given[1]):
        raise Error(f"text={given!r:.60} is neither a text nor (text, word), with a word or its number.")
    text, word = given
    if isinstance(word, str) and not word.strip():
        raise Error(f"word={word!r} of the text {text!r:.40} is empty: write a word, or give its number.")
    return text, word.strip() if isinstance(word, str) else word


def _overlapping(one: EncodedText, start: int, end: int) -> list[int]:
    """Return the tokens that stand for some of the characters from start to end."""
    return [i for i, span in enumerate(one.spans) if span is not None and span[0] < end and start < span[1]]


def whole(word: str) -> str:
    """Return the pattern of a word that is not a part of a longer one; punctuation may touch a word."""
    before, after = (r"\b" if re.match(r"\w", end) else "" for end in (word[0], word[-1]))
    return before + re.escape(word) + after
