"""What a language model goes on from: a text, or a chat in the words of its template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import Error
from .input_options import refuse_halves
from .task import Encoded
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HOLE = "\ue000{}\ue001"
"""What stands for a message while the template around it is found: characters that no template writes."""

_IS_HOLE = re.compile("\ue000(\\d+)\ue001")

Span = tuple[int, int]


@dataclass(frozen=True)
class EncodedPrompt(Encoded):
    """A prompt as the model sees it: its tokens, and which of them are none of the user's own."""

    ids: tuple[int, ...]

    @property
    def key(self) -> str:
        return str(self.ids)

    @property
    def fixed(self) -> tuple[bool, ...]:
        """The last token stays: the answer is read there."""
        return (*[False] * (len(self) - 1), True)

    @property
    def sink(self) -> int | None:
        return 0


@dataclass(frozen=True)
class Prompt:
    """A prompt as text, and where in it the user's own words stand."""

    text: str
    own: tuple[Span, ...]
    is_chat: bool

    def holds(self, span: Span) -> bool:
        """Return whether a token that stands for some characters has any of the user's own among them."""
        start, end = span
        return any(start < stop and max(end, start + 1) > first for first, stop in self.own)


def is_chat(given: Any) -> bool:
    """Return whether something is a chat: a list of messages."""
    return isinstance(given, (list, tuple)) and bool(given) and all(isinstance(one, Mapping) for one in given)


def prompt_of(tokenizer: PreTrainedTokenizerBase, given: Any) -> Prompt:
    """Return a text as it is, and a chat as its template writes it, up to where the answer begins."""
    if is_chat(given):
        return _chat(tokenizer, given)
    if not isinstance(given, str):
        raise Error(
            f"prompt={given!r:.60} is neither a text nor a chat: a chat is a list of {{'role': ..., 'content': ...}}."
        )
    if not given.strip():
        raise Error(f"prompt={given!r} is empty: there is nothing to go on from.")
    refuse_halves("prompt", given)
    return Prompt(given, ((0, len(given)),), False)


_SPACES = ("Ġ", "▁")
"""How tokenizers write a space where a token is only a part of a character, which is shown as they write it."""


def words_of(texts: Sequence[str], special: Sequence[bool]) -> tuple[int | None, ...]:
    """Return the word of each token: a word begins after white space, and special tokens have none."""
    words: list[int | None] = []
    word, begins = -1, True
    for text, is_special in zip(texts, special, strict=True):
        if is_special:
            words.append(None)
            begins = True
            continue
        word += begins or text[:1].isspace() or text[:1] in _SPACES
        words.append(word)
        begins = text[-1:].isspace()
    return tuple(words)


def encoded_prompt(
    tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary, prompt: Prompt, longest: int, truncate: bool
) -> EncodedPrompt:
    """Turn a prompt into tokens; one that is too long is refused, or loses its beginning if `truncate` says so."""
    asked: dict[str, Any] = {"add_special_tokens": not prompt.is_chat, "verbose": False}  # a template writes its own
    found = tokenizer(prompt.text, return_offsets_mapping=tokenizer.is_fast, **asked)
    ids, added = [int(one) for one in found["input_ids"]], set(tokenizer.all_special_ids)
    spans = found["offset_mapping"] if tokenizer.is_fast else [(0, len(prompt.text))] * len(ids)
    if not prompt.is_chat:
        while len(ids) > 1 and _is_an_end(tokenizer, ids, spans):  # after which nothing goes on
            ids, spans = ids[:-1], spans[:-1]
    special = [one in added or not prompt.holds(span) for one, span in zip(ids, spans, strict=True)]
    if all(special):
        raise Error(f"prompt={prompt.text!r:.60} holds nothing that the tokenizer knows: there is nothing to explain.")
    if len(ids) > longest:
        if not truncate:
            raise Error(
                f"The prompt beginning {prompt.text[:40]!r} has {len(ids)} tokens, the model takes {longest}: shorten "
                "it, or let its beginning be cut with truncate=True (--truncate)."
            )
        first = int(ids[0] == tokenizer.bos_token_id)  # a text begins where the mark of its beginning stands
        end = len(ids) - longest + first
        ids, special = [*ids[:first], *ids[end:]], [*special[:first], *special[end:]]
    tokens = [vocabulary.text(one) for one in ids]
    return EncodedPrompt(prompt.text, tuple(tokens), tuple(special), words_of(tokens, special), tuple(ids))


def _is_an_end(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> bool:
    """Return whether a tokenizer appends a special token, such as an end-of-sequence token, to a text."""
    if ids[-1] not in tokenizer.all_special_ids:
        return False
    if tokenizer.is_fast:
        return spans[-1][0] == spans[-1][1]
    return ids[-1] in (tokenizer.eos_token_id, tokenizer.sep_token_id, tokenizer.cls_token_id)


def _chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]) -> Prompt:
    for one in messages:
        if set(one) != {"role", "content"} or not all(isinstance(part, str) for part in one.values()):
            raise Error(f"{dict(one)!r:.80} is not a message: it must be {{'role': ..., 'content': ...}}, both texts.")
        refuse_halves("content", one["content"])
    if not any(one["content"].strip() for one in messages):
        raise Error(f"prompt={list(messages)!r:.80} is empty: there is nothing to go on from.")
    if not getattr(tokenizer, "chat_template", None):
        raise Error(
            f"The tokenizer has no chat template for the {len(messages)} message(s): give the prompt as a text, or "
            "set tokenizer.chat_template."
        )
    text = _rendered(tokenizer, messages)
    holes = [{**one, "content": _HOLE.format(i)} for i, one in enumerate(messages)]
    around = _IS_HOLE.split(_rendered(tokenizer, holes))  # what the template writes, and the messages' numbers
    pattern = "".join(
        _way(messages[int(part)]["content"]) if i % 2 else re.escape(part) for i, part in enumerate(around)
    )
    found = re.fullmatch(pattern, text, re.DOTALL)
    # A template that writes something else around other messages: then all of it counts as the user's.
    own = ((0, len(text)),) if found is None else tuple(found.span(i + 1) for i in range(len(around) // 2))
    return Prompt(text, own, True)


def _way(content: str) -> str:
    """Return a pattern for a message as a template may write it: whole, without white space around it, or changed."""
    return f"({re.escape(content)}|{re.escape(content.strip())}|.*?)"


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]) -> str:
    try:
        plain = [dict(one) for one in messages]
        return str(tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # whatever a template of anyone's runs into
        roles = ", ".join(str(one["role"]) for one in messages)
        raise Error(f"The chat template refuses messages of {roles}: {error} ({type(error).__name__}).") from None
