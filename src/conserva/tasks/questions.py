"""Extractive question answering: why a model finds its answer in these words of a context."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..datasets import Labelled
from ..engine.inputs import parameters_of
from ..errors import Error
from .encoded_text import EncodedText
from .input_options import inputs_of, refuse_halves
from .masking import TextRows
from .output_heads import SINGLE_LABEL
from .reading import Answer, Reading
from .tagging import whole
from .text import Text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PARTS = ("span", "start", "end")
"""What is explained: the score of a span, which is its start's and its end's together, or one of the two alone."""

MOST_TOKENS = 30
"""How many tokens an answer has at most."""

MOST_PLACES = 4096
"""How many tokens an input has at most: spans are classes, of which there must be a number."""

_NEVER = -1e4
"""The score of spans that are not answers: outside the context, or with its end before its start."""


@dataclass(frozen=True)
class EncodedQuestion(EncodedText):
    """A question and its context as the model sees them, one behind the other."""

    question: str = field(kw_only=True)
    context: str = field(kw_only=True)
    types: tuple[int, ...] = field(kw_only=True)
    """Which of the two texts a token belongs to, as the tokenizer tells the model."""
    inside: tuple[bool, ...] = field(kw_only=True)
    """Which tokens are the context's own."""

    @property
    def sections(self) -> tuple[tuple[str, int], ...]:
        border = self.inside.index(True)
        return (("question", border), ("context", len(self) - border))

    def span_of(self, answer: str) -> tuple[int, int] | None:
        """Return the first and the last token of an answer, where it stands first in the context, whole."""
        found = re.search(whole(answer), self.context)
        if found is None:
            return None
        start, end = found.span()
        there = enumerate(zip(self.spans, self.inside, strict=True))
        places = [i for i, (span, inside) in there if inside and span and span[0] < end and start < span[1]]
        # The end of a context that was cut off may be the end of the answer.
        is_whole = bool(places) and cast("tuple[int, int]", self.spans[places[-1]])[1] >= end
        return (places[0], places[-1]) if is_whole else None

    def words_of(self, first: int, last: int) -> str:
        """Return the words of the context from one token to another."""
        offsets = self.part.offsets
        return self.context[offsets[first][0] : offsets[last][1]]


@dataclass(frozen=True)
class QuestionRows(TextRows):
    """A question and its context with other tokens taken away in each row."""

    types: np.ndarray
    inside: np.ndarray

    def __getitem__(self, rows: slice | np.ndarray) -> QuestionRows:
        return QuestionRows(self.ids[rows], self.attention[rows], self.types[rows], self.inside[rows])

    def keys(self) -> np.ndarray:
        """Return all that the model is asked with."""
        both = np.ascontiguousarray(np.concatenate([self.types, self.inside], axis=1))
        return np.concatenate([super().keys(), both.view(np.uint8)], axis=1)


class Spans(Reading):
    """A network that scores every token as the start and as the end of the answer, read as a choice between answers.

    A span is known by its first place and its length: class = place * MOST_TOKENS + length - 1. A start or an end alone
    is known by its place.
    """

    def __init__(self, network: nn.Module, part: str, places: int) -> None:
        super().__init__(network)
        self.part, self.classes = part, places * (MOST_TOKENS if part == "span" else 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, context_mask: Tensor, **asked: Any) -> Answer:
        """Return the scores of all answers that the context may hold, and very low ones for others."""
        output = self.ask(input_ids=input_ids, attention_mask=attention_mask, **asked)
        start, end = getattr(output, "start_logits", None), getattr(output, "end_logits", None)
        if start is None or end is None:
            raise Error(
                f"{type(self.network).__name__} gives no scores for the start and the end of an answer: load the model "
                "with AutoModelForQuestionAnswering."
            )
        allowed = context_mask.bool()
        if self.part == "span":
            scores = start.unsqueeze(-1) + _following(end)
            allowed = allowed.unsqueeze(-1) & _following(allowed)
        else:
            scores = start if self.part == "start" else end
        scores = scores.masked_fill(~allowed, _NEVER).flatten(1)
        return self.answer(F.pad(scores, (0, self.classes - scores.shape[1]), value=_NEVER), output)


def _following(x: Tensor) -> Tensor:
    """Return for every place what stands there and at the places behind it: samples x places x MOST_TOKENS."""
    return F.pad(x, (0, MOST_TOKENS - 1)).unfold(1, MOST_TOKENS, 1)


class Question(Text):
    """A model that answers questions with words of a context: an input is (question, context).

    What is explained is the score of an answer, the sum of its start's and its end's; with `part` "start" or "end" one
    of the two alone. A target is an answer, words of the context as they stand there first; a contrast of two as
    "a - b"; or None for the model's own answer, of 30 tokens at most. The probability is that among all such answers.
    """

    noun = "question with its context"
    model: Spans

    def __init__(
        self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str | None = None, *, part: str = "span"
    ) -> None:
        if part not in PARTS:
            raise Error(f"part={part!r} is none of {', '.join(PARTS)}.")
        super().__init__(model, tokenizer, name, head=SINGLE_LABEL.name)
        if not getattr(tokenizer, "is_fast", False):
            raise Error(
                f"The tokenizer of {self.name} does not tell where its tokens stand in a text: load a fast one, with "
                "AutoTokenizer."
            )
        self.part = part
        self.typed = "token_type_ids" in tokenizer.model_input_names and "token_type_ids" in parameters_of(model)
        self.model = Spans(model, part, self.longest)

    @property
    def options(self) -> Mapping[str, Any]:
        return {"part": self.part}

    @property
    def longest(self) -> int:
        """How many tokens the model takes, or may be asked with."""
        return min(super().longest, MOST_PLACES)

    @property
    def labels(self) -> dict[str, int]:
        """None: answers are words of their context."""
        return {}

    @property
    def classes(self) -> int:
        """How many answers there may be, in the longest context."""
        return self.model.classes

    def is_one(self, given: Any) -> bool:
        return isinstance(given, tuple) and len(given) == 2 and all(isinstance(text, str) for text in given)

    def labelled(self, data: Any) -> Labelled:
        """Return questions with their answers: of a list of (question, context) or ((question, context), answer)."""
        found = inputs_of(self, data, "(question, context)")
        if found.labels is None:
            return found
        encoded = self.encode_all(found.texts, truncate=True)  # whether contexts may be cut is asked when they are used
        answers = tuple(self._class(str(label), one) for label, one in zip(found.labels, encoded, strict=True))
        return Labelled(found.texts, answers, found.source)

    def encode_all(self, texts: Sequence[Any], *, truncate: bool = False) -> list[EncodedText]:
        """Turn questions and contexts into tokens; of what is too long, the context is cut if `truncate` says so."""
        return [self._pair(given, truncate) for given in texts]

    def _pair(self, given: Any, truncate: bool) -> EncodedQuestion:
        if not isinstance(given, (tuple, list)) or len(given) != 2 or not all(isinstance(x, str) for x in given):
            raise Error(f"{given!r:.60} is not a pair of texts: give (question, context).")
        for what, text in zip(("question", "context"), given, strict=True):
            if not text.strip():
                raise Error(f"{what}={text!r} is empty: give (question, context), both with words.")
            refuse_halves(what, text)
        question, context = given
        own = self.tokenizer(question, add_special_tokens=False, verbose=False)["input_ids"]
        if truncate and len(own) + self.tokenizer.num_special_tokens_to_add(True) >= self.longest:
            raise Error(
                f"The question beginning {question[:40]!r} has {len(own)} tokens and leaves no room for a context: the "
                f"model takes {self.longest}. Shorten it."
            )
        found = self.tokenizer(
            [question],
            [context],
            truncation="only_second" if truncate else False,
            max_length=self.longest if truncate else None,
            return_token_type_ids=self.typed,
            verbose=False,
        )
        part, ids = found.encodings[0], list(found["input_ids"][0])
        one = self._encoded(f"{question} | {context}", ids, set(self.tokenizer.all_special_ids), part, self.longest)
        inside = tuple(number == 1 for number in part.sequence_ids)
        if not any(inside):
            raise Error(f"context={context!r:.60} holds nothing that the tokenizer knows: there is no answer in it.")
        types = tuple(found["token_type_ids"][0]) if self.typed else (0,) * len(ids)
        return EncodedQuestion(**vars(one), question=question, context=context, types=types, inside=inside)

    def aim(self, target: Any, encoded: EncodedQuestion) -> Any:
        if target is None:
            return None
        if not isinstance(target, str):
            raise Error(f"target={target!r}: give words of the context, 'a - b' for a contrast, or None.")
        parts = [target] if target in encoded.context else target.split(" - ", 1)
        classes = [self._class(part.strip(), encoded) for part in parts]
        return classes[0] if len(classes) == 1 else " - ".join(map(str, classes))

    def _class(self, answer: str, encoded: Any) -> int:
        """Return the class of an answer."""
        span = encoded.span_of(answer) if answer.strip() else None
        if span is None:
            raise Error(
                f"target={answer!r} does not stand in the context {encoded.context!r:.60}, or was cut off with its "
                "end: give words of it as they are written there, or None for the model's own answer."
            )
        first, last = span
        if last - first >= MOST_TOKENS:
            raise Error(f"target={answer!r:.60} has {last - first + 1} tokens, an answer {MOST_TOKENS} at most.")
        if self.part == "span":
            return int(first * MOST_TOKENS + last - first)
        return int(first if self.part == "start" else last)

    def titled(self, target: Any, index: int | None, encoded: EncodedQuestion) -> str:
        """Return the answer that a target is, in the words of the context."""
        if index is None or isinstance(target, str):
            return self.named(target, index)
        first, more = divmod(index, MOST_TOKENS) if self.part == "span" else (index, 0)
        return encoded.words_of(first, first + more)

    def batch(self, encoded: Sequence[Any]) -> dict[str, Tensor]:
        """Put questions side by side, padded on the right to the longest."""
        inputs = super().batch(encoded)
        return {**inputs, **self._beside(inputs, [one.types for one in encoded], [one.inside for one in encoded])}

    def masked(self, encoded: Any, kept: np.ndarray, mask: str) -> QuestionRows:
        rows = super().masked(encoded, kept, mask)
        types, inside = (np.broadcast_to(np.array(x, np.int64), kept.shape) for x in (encoded.types, encoded.inside))
        return QuestionRows(rows.ids, rows.attention, types, inside)

    def stack(self, parts: Sequence[Any]) -> dict[str, Tensor]:
        inputs = super().stack(parts)
        types, inside = ([part.types for part in parts], [part.inside for part in parts])
        return {**inputs, **self._beside(inputs, list(chain(*types)), list(chain(*inside)))}

    def _beside(self, inputs: dict[str, Tensor], types: Sequence[Any], inside: Sequence[Any]) -> dict[str, Tensor]:
        """Return what the model is asked with beside the tokens, as wide as they are."""
        ids = inputs["input_ids"]

        def wide(rows: Sequence[Any]) -> Tensor:
            found = np.zeros(tuple(ids.shape), np.int64)
            for i, row in enumerate(rows):
                found[i, : len(row)] = row
            return torch.from_numpy(found).to(ids.device, non_blocking=True)

        return {"context_mask": wide(inside), **({"token_type_ids": wide(types)} if self.typed else {})}
