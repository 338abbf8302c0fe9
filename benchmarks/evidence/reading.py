"""An item as a model reads it: its tokens, which of them are what, and whether the model answers it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import conserva
from conserva.tasks import Causal
from conserva.tasks.prompts import EncodedPrompt, Prompt, encoded_prompt, prompt_of

from .item import Item, Span

SCOPES = ("document", "prompt", "whole")
"""The tokens whose scores are compared: the document's; all that the user wrote; all, with template and sink.

A space before the answer that is a token by itself is not the user's: it counts as the template's."""

LEVELS = ("token", "word")
AT_ONCE = 2048
"""How many tokens are in a batch."""


@dataclass(frozen=True)
class Read:
    """An item as tokens."""

    item: Item
    encoded: EncodedPrompt
    answer: tuple[int, ...]
    """The tokens of the answer, which the model is to say next."""
    evidence: np.ndarray
    """Whether a token has a part of the evidence."""
    document: np.ndarray
    """Whether a token has a part of the document."""

    def __len__(self) -> int:
        return len(self.encoded.ids)

    @property
    def own(self) -> np.ndarray:
        """Whether a token was written by the user and is not the first of all, the attention sink."""
        found = ~np.array(self.encoded.special)
        found[0] = False
        return found

    def places(self, scope: str) -> np.ndarray:
        """Return the tokens of a scope."""
        if scope == "whole":
            return np.arange(len(self))
        return np.flatnonzero(self.own & self.document if scope == "document" else self.own)

    def features(self, scores: np.ndarray, scope: str, level: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores of the tokens or words of a scope, and whether each has a part of the evidence."""
        places = self.places(scope)
        if level == "token":
            return scores[places], self.evidence[places]
        words = np.array([-1 - i if word is None else word for i, word in enumerate(self.encoded.words)])
        _, numbers = np.unique(words[places], return_inverse=True)
        return np.bincount(numbers, scores[places]), np.bincount(numbers, self.evidence[places]) > 0


def read(task: Causal, item: Item, begin: str = "") -> Read | None:
    """Tokenize an item; None if the tokenizer does not separate prompt and answer.

    `begin` is put before plain prompts where the tokenizer adds no token that marks the beginning of a text: otherwise
    the first word of the prompt would be the attention sink.
    """
    given: Any = [{"role": "user", "content": item.prompt}] if item.chat else item.prompt
    prompt = prompt_of(task.tokenizer, given)
    if begin and not item.chat:
        text = begin + prompt.text
        prompt = Prompt(text, ((len(begin), len(text)),), False)
    start = prompt.own[0][0]
    if prompt.text[start : start + len(item.prompt)] != item.prompt:
        raise conserva.Error(f"The chat template changes the prompt {item.prompt[:40]!r}: offsets would be wrong.")
    between = "" if prompt.text[-1:].isspace() else " "
    whole = Prompt(prompt.text + between + item.answer, prompt.own, prompt.is_chat)
    told = _encoded(task, whole)
    inside = overlapping(told.offsets, [(len(prompt.text) + len(between), len(whole.text))])
    cut = int(inside.argmax())
    # A tokenizer may have the space before a word in the word, or by itself: then it belongs to the prompt.
    for end in ("", between):
        encoded = _encoded(task, Prompt(prompt.text + end, prompt.own, prompt.is_chat))
        if encoded.ids == told.ids[:cut]:
            break
    else:
        return None

    def has(spans: Sequence[Span]) -> np.ndarray:
        return overlapping(encoded.offsets, [(start + first, start + end) for first, end in spans])

    answer = tuple(np.array(told.ids)[inside].tolist())
    return Read(item, encoded, answer, has(item.evidence), has([item.document]))


def _encoded(task: Causal, prompt: Prompt) -> EncodedPrompt:
    return encoded_prompt(task.tokenizer, task.vocabulary, prompt, sys.maxsize, False)


def overlapping(offsets: Sequence[Span | None], spans: Sequence[Span]) -> np.ndarray:
    """Return which tokens have a character of one of the spans."""
    return np.array(
        [one is not None and any(max(one[0], a) < min(one[1], b) for a, b in spans) for one in offsets], dtype=bool
    )


def inputs_of(task: Causal, many: Sequence[Sequence[int]], reads: int = 1) -> dict[str, Tensor]:
    """Return a batch that is read at the last positions of each row, padded on the right."""
    width = max(map(len, many))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in many])
    ends = torch.tensor([len(row) for row in many])[:, None]
    positions = ends - torch.arange(reads, 0, -1)
    mask = (torch.arange(width) < ends).long()
    inputs = {"input_ids": ids, "attention_mask": mask, "read": positions[:, 0] if reads == 1 else positions}
    return {name: x.to(task.device) for name, x in inputs.items()}


def answers(task: Causal, one: Read) -> list[bool]:
    """Return for each token of the answer whether greedy decoding says it, after those before it."""
    inputs = inputs_of(task, [[*one.encoded.ids, *one.answer[:-1]]], len(one.answer))
    with torch.inference_mode():
        said = task.model(**inputs).logits.argmax(-1).flatten().tolist()
    return [a == b for a, b in zip(said, one.answer, strict=True)]


def explained(one: Read, target: str) -> tuple[int, ...]:
    """Return the tokens of the answer whose logits are explained: the first, or all."""
    return one.answer[:1] if target == "first" else one.answer


def total(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Return the sum of the logits of tokens, each at its position."""
    if logits.dim() == 2:
        return logits[:, tokens[0]]
    return torch.stack([logits[:, i, token] for i, token in enumerate(tokens)]).sum(0)


def logits(task: Causal, one: Read, kept: np.ndarray, target: str) -> np.ndarray:
    """Return the explained number with only some tokens of the prompt; `kept` is rows x tokens."""
    tokens, ids = explained(one, target), np.array(one.encoded.ids)
    rows = [[*ids[row].tolist(), *tokens[:-1]] for row in kept]
    step = max(1, AT_ONCE // len(one))
    found = []
    with torch.inference_mode():
        for start in range(0, len(rows), step):
            inputs = inputs_of(task, rows[start : start + step], len(tokens))
            found.append(total(task.model(**inputs).logits, tokens).double().cpu().numpy())
    return np.concatenate(found)
