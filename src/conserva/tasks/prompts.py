"""Prompts of causal language models: a text, or a chat rendered by the chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import Error
from .task import Encoded
from .tokenizing import call_tokenizer
from .user_inputs import refuse_surrogates
from .vocabulary import Vocabulary, special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HOLE = "\ue000{}\ue001"
"""A placeholder for the content of a message, to find what the template writes around it: private use characters."""

_IS_HOLE = re.compile("\ue000(\\d+)\ue001")

Span = tuple[int, int]


@dataclass(frozen=True)
class EncodedPrompt(Encoded):
    """A tokenized prompt; tokens of the chat template are special."""

    ids: tuple[int, ...]
    spans: tuple[Span | None, ...] = ()
    """The start and end characters of each token in `text`; None for tokens that the tokenizer added."""

    @property
    def offsets(self) -> tuple[Span | None, ...]:
        return self.spans or super().offsets

    @property
    def key(self) -> str:
        return str(self.ids)

    @property
    def fixed(self) -> tuple[bool, ...]:
        """The last token is never removed: the next token is predicted at its position."""
        return (*[False] * (len(self) - 1), True)

    @property
    def sink(self) -> int | None:
        return 0


@dataclass(frozen=True)
class Prompt:
    """The text of a prompt, and the spans of it that the user wrote."""

    text: str
    own: tuple[Span, ...]
    is_chat: bool

    def holds(self, span: Span) -> bool:
        """Return whether the span of a token overlaps with text of the user."""
        start, end = span
        return any(start < stop and max(end, start + 1) > first for first, stop in self.own)


def is_chat(given: Any) -> bool:
    """Return whether an input is a chat: a list of messages."""
    return isinstance(given, (list, tuple)) and bool(given) and all(isinstance(message, Mapping) for message in given)


def prompt_of(tokenizer: PreTrainedTokenizerBase, given: Any) -> Prompt:
    """Return a text unchanged, or a chat rendered by the template.

    A chat that ends with a message of the assistant is continued, as pipelines of transformers do. Others are rendered
    with the generation prompt.
    """
    if is_chat(given):
        return _chat(tokenizer, given)
    if not isinstance(given, str):
        raise Error(
            f"prompt={given!r:.60} is neither a text nor a chat: a chat is a list of {{'role': ..., 'content': ...}}."
        )
    if not given.strip():
        raise Error(f"prompt={given!r} is empty: give a text.")
    refuse_surrogates("prompt", given)
    return Prompt(given, ((0, len(given)),), False)


_SPACES = ("Ġ", "▁")
"""Space characters of vocabularies, which are visible in tokens that are only a part of a character."""


def words_of(texts: Sequence[str], special: Sequence[bool]) -> tuple[int | None, ...]:
    """Return the word index of each token: a word begins after white space, and special tokens have none."""
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
    """Tokenize a prompt. One that is too long raises an `Error`, or with `truncate` loses its beginning."""
    options: dict[str, Any] = {"add_special_tokens": not prompt.is_chat, "verbose": False}  # templates add their own
    output = call_tokenizer(tokenizer, prompt.text, return_offsets_mapping=tokenizer.is_fast, **options)
    ids, added = [int(token) for token in output["input_ids"]], special_ids(tokenizer)
    spans = output["offset_mapping"] if tokenizer.is_fast else [(0, len(prompt.text))] * len(ids)
    if not prompt.is_chat:
        while len(ids) > 1 and _is_an_end(tokenizer, ids, spans):  # a model does not continue after these
            ids, spans = ids[:-1], spans[:-1]
    special = [token in added or not prompt.holds(span) for token, span in zip(ids, spans, strict=True)]
    if all(special):
        raise Error(
            f"prompt={prompt.text!r:.60} has no tokens in the tokenizer's vocabulary: there is nothing to explain."
        )
    if len(ids) > longest:
        if not truncate:
            raise Error(
                f"The prompt beginning {prompt.text[:40]!r} has {len(ids)} tokens, the model takes {longest}: shorten "
                "it, or truncate its beginning with truncate=True (--truncate)."
            )
        first = int(ids[0] == tokenizer.bos_token_id)  # the beginning-of-sequence token is kept
        end = len(ids) - longest + first
        ids, special = [*ids[:first], *ids[end:]], [*special[:first], *special[end:]]
        spans = [*spans[:first], *spans[end:]]
    tokens = [vocabulary.text(token) for token in ids]
    offsets = (
        tuple((int(start), int(end)) if start < end else None for start, end in spans) if tokenizer.is_fast else ()
    )
    unknown = tuple(token == tokenizer.unk_token_id for token in ids)
    words = words_of(tokens, special)
    return EncodedPrompt(prompt.text, tuple(tokens), tuple(special), words, tuple(ids), offsets, unknown=unknown)


def _is_an_end(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> bool:
    """Return whether the last token is a special token that the tokenizer appended, such as end-of-sequence."""
    if ids[-1] not in tokenizer.all_special_ids:
        return False
    if tokenizer.is_fast:
        return spans[-1][0] == spans[-1][1]
    return ids[-1] in (tokenizer.eos_token_id, tokenizer.sep_token_id, tokenizer.cls_token_id)


def _chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]) -> Prompt:
    for message in messages:
        if set(message) != {"role", "content"} or not all(isinstance(part, str) for part in message.values()):
            raise Error(
                f"{dict(message)!r:.80} is not a message: it must be {{'role': ..., 'content': ...}}, both texts."
            )
        refuse_surrogates("content", message["content"])
    if not any(message["content"].strip() for message in messages):
        raise Error(f"prompt={list(messages)!r:.80} is empty: give a message with content.")
    if not getattr(tokenizer, "chat_template", None):
        raise Error(
            f"The tokenizer has no chat template for the {len(messages)} message(s): give the prompt as a text, or "
            "set tokenizer.chat_template."
        )
    text = _rendered(tokenizer, messages)
    holes = [{**message, "content": _HOLE.format(i)} for i, message in enumerate(messages)]
    parts = _IS_HOLE.split(_rendered(tokenizer, holes))  # text of the template and numbers of messages, alternating
    pattern = "".join(
        _content_pattern(messages[int(part)]["content"]) if i % 2 else re.escape(part) for i, part in enumerate(parts)
    )
    match = re.fullmatch(pattern, text, re.DOTALL)
    # If the text of the template depends on the content of messages, all of the prompt counts as the user's.
    own = ((0, len(text)),) if match is None else tuple(match.span(i + 1) for i in range(len(parts) // 2))
    return Prompt(text, own, True)


def _content_pattern(content: str) -> str:
    """Return a pattern for content as a template may render it: unchanged, stripped of white space, or modified."""
    return f"({re.escape(content)}|{re.escape(content.strip())}|.*?)"


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]) -> str:
    try:
        plain = [dict(message) for message in messages]
        begun = plain[-1]["role"] == "assistant"
        options = {"add_generation_prompt": not begun, "continue_final_message": begun}
        return str(tokenizer.apply_chat_template(plain, tokenize=False, **options))
    except Exception as error:  # templates are programs, which can raise anything
        roles = ", ".join(str(message["role"]) for message in messages)
        raise Error(f"The chat template rejects messages of {roles}: {error} ({type(error).__name__}).") from None
