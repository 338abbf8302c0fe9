"""The tokens of a language model as a reader knows them: by their texts, with the spaces that belong to them."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import Error
from .input_options import refuse_halves

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BEFORE = "a"
"""What stands before a token while its text is found: many tokenizers drop the space at the beginning of a text."""

_NO_CHARACTER = "\ufffd"
"""What tokenizers write for bytes that are only a part of a character."""


class Vocabulary(Mapping[str, int]):
    """The tokens' texts and their ids.

    A text is looked up as the tokenizer writes it, by itself or after a space: a word after a space first, which is
    how words follow each other, and everything else as it is.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}
        self._before = self.pieces(_BEFORE)

    def text(self, token: int) -> str:
        """Return what a token adds to a text; of a token that is only a part of a character, the token itself."""
        if token not in self._texts:
            alone, both = self._decoded(self._before), self._decoded([*self._before, token])
            own = both.removeprefix(alone)
            if not own or _NO_CHARACTER in own or not both.startswith(alone):
                own = self._tokenizer.convert_ids_to_tokens([token])[0] or f"<{token}>"
            self._texts[token] = str(own)
        return self._texts[token]

    def pieces(self, text: str) -> list[int]:
        """Return the tokens of a text that stands by itself."""
        refuse_halves("text", text)
        found = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return [int(one) for one in found]

    def following(self, before: str, text: str) -> list[int]:
        """Return the tokens of a text after another: as in both together, if the tokens before it stay the same."""
        first, whole = self.pieces(before), self.pieces(before + text)
        if whole[: len(first)] == first:
            return whole[len(first) :]
        return self.pieces(text) if before == _BEFORE else self.following(_BEFORE, text)

    def contrast(self, target: str, spaced: bool = True) -> tuple[int, int] | None:
        """Return the two tokens of "a - b", written alike: both as they are, or both after a space. None for others."""
        a, dash, b = target.partition(" - ")
        if not dash or target in self:
            return None
        after = b if b[:1].isspace() else f" {b}"
        ways = [(a, after)] if a[:1].isspace() else [(a, b), (f" {a}", after)]
        for first, second in reversed(ways) if spaced and a[:1].isalpha() else ways:
            found = self._one(first), self._one(second)
            if found[0] is not None and found[1] is not None:
                return found[0], found[1]
        return self.token(a, spaced), self.token(b, spaced)

    def token(self, text: str, spaced: bool = True) -> int:
        """Return the token of a text; one that has none is refused with its pieces.

        `spaced` is false where the text before it ends in a space: then no other begins a word.
        """
        if (found := self._find(text, spaced)) is not None:
            return found
        shown = ", ".join(repr(self.text(one)) for one in self.pieces(text)) or "none"
        raise Error(
            f"target={text!r} is not a single token; its pieces are {shown}. Explain the whole answer with "
            "conserva.explain_generation(task, prompt, continuation=...), or give the first piece, or a token's id."
        )

    def __getitem__(self, text: str) -> int:
        if (found := self._find(text, spaced=True)) is None:
            raise KeyError(text)
        return found

    def _find(self, text: str, spaced: bool) -> int | None:
        forms = [text] if not text or text[:1].isspace() else [text, f" {text}"]
        if spaced and text[:1].isalpha():
            forms.reverse()
        return next((found for form in forms if text and (found := self._one(form)) is not None), None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def items(self) -> ItemsView[str, int]:
        """Return all texts with their ids, found once."""
        return self._all.items()

    @cached_property
    def _all(self) -> dict[str, int]:
        return {self.text(token): token for token in range(len(self._tokenizer))}

    def _one(self, form: str) -> int | None:
        """Return the token that a text is, if it is one: at the beginning, or after something else."""
        for found in (self.pieces(form), self.following(_BEFORE, form)):
            unknown = found == [self._tokenizer.unk_token_id] and form != self._tokenizer.unk_token
            if len(found) == 1 and not unknown:
                return found[0]
        return None

    def _decoded(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))
