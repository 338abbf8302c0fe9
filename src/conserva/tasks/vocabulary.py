"""The vocabulary of a language model: texts of tokens, with their leading spaces, and their ids."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import Error
from .tokenizing import call_tokenizer
from .user_inputs import refuse_surrogates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BEFORE = "a"
"""The text before a token when it is decoded: many tokenizers drop a space at the beginning of a text."""

_NO_CHARACTER = "\ufffd"
"""The replacement character, to which bytes decode that are only a part of a character."""


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of special tokens without the unknown token, which stands for text of the user.

    Where the unknown token is also another special token, as in GPT-2, it is included.
    """
    others = {getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "sep", "pad", "cls", "mask")}
    return frozenset(tokenizer.all_special_ids) - ({tokenizer.unk_token_id} - others)


class Vocabulary(Mapping[str, int]):
    """A mapping from the texts of tokens to their ids.

    A text is looked up both as it is and with a leading space: a word first with the space, which words within a text
    have, everything else first as it is.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}
        self._before = self.pieces(_BEFORE)

    def text(self, token: int) -> str:
        """Return the decoded text of a token; for a part of a character, the token as it is in the vocabulary."""
        if token not in self._texts:
            alone, both = self._decoded(self._before), self._decoded([*self._before, token])
            own = both.removeprefix(alone)
            if not own or _NO_CHARACTER in own or not both.startswith(alone):
                own = self._tokenizer.convert_ids_to_tokens([token])[0] or f"<{token}>"
            self._texts[token] = str(own)
        return self._texts[token]

    def pieces(self, text: str) -> list[int]:
        """Return the token ids of a text, without context."""
        refuse_surrogates("text", text)
        ids = call_tokenizer(self._tokenizer, text, add_special_tokens=False, verbose=False)["input_ids"]
        return [int(token) for token in ids]

    def following(self, before: str, text: str) -> list[int]:
        """Return the token ids of a text after another one, from both together if that leaves the first unchanged."""
        first, whole = self.pieces(before), self.pieces(before + text)
        if whole[: len(first)] == first:
            return whole[len(first) :]
        return self.pieces(text) if before == _BEFORE else self.following(_BEFORE, text)

    def contrast(self, target: str, spaced: bool = True) -> tuple[int, int] | None:
        """Return the two token ids of "a - b", both with a leading space or both without; None for other targets."""
        a, dash, b = target.partition(" - ")
        if not dash or target in self:
            return None
        after = b if b[:1].isspace() else f" {b}"
        forms = [(a, after)] if a[:1].isspace() else [(a, b), (f" {a}", after)]
        for first, second in reversed(forms) if spaced and a[:1].isalpha() else forms:
            ids = self._single(first), self._single(second)
            if ids[0] is not None and ids[1] is not None:
                return ids[0], ids[1]
        return self.token(a, spaced), self.token(b, spaced)

    def token(self, text: str, spaced: bool = True) -> int:
        """Return the token id of a text; raise an `Error` that lists its pieces if it is not a single token.

        `spaced` is False if the text before it ends in white space: then a word has no leading space.
        """
        if (token := self._find(text, spaced)) is not None:
            return token
        shown = ", ".join(repr(self.text(piece)) for piece in self.pieces(text)) or "none"
        raise Error(
            f"target={text!r} is not a single token; its pieces are {shown}. Explain the whole answer with "
            "conserva.explain_generation(task, prompt, continuation=...), or give the first piece, or a token's id."
        )

    def __getitem__(self, text: str) -> int:
        if (token := self._find(text, spaced=True)) is None:
            raise KeyError(text)
        return token

    def _find(self, text: str, spaced: bool) -> int | None:
        forms = [text] if not text or text[:1].isspace() else [text, f" {text}"]
        if spaced and text[:1].isalpha():
            forms.reverse()
        return next((token for form in forms if text and (token := self._single(form)) is not None), None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def items(self) -> ItemsView[str, int]:
        """Return all texts with their ids; they are decoded once."""
        return self._all.items()

    @cached_property
    def _all(self) -> dict[str, int]:
        return {self.text(token): token for token in range(len(self._tokenizer))}

    def _single(self, form: str) -> int | None:
        """Return the id of a text that is a single token, at the beginning of a text or after another; else None."""
        for ids in (self.pieces(form), self.following(_BEFORE, form)):
            unknown = ids == [self._tokenizer.unk_token_id] and form != self._tokenizer.unk_token
            if len(ids) == 1 and not unknown:
                return ids[0]
        return None

    def _decoded(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))
