"""Extractive question answering: which tokens of question and context a model's answer is based on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..datasets import Labelled
from ..errors import Error
from .encoded_text import EncodedText
from .masking import TextRows
from .model_kind import ModelKind
from .output_heads import SINGLE_LABEL
from .reading import Answer, Reading
from .tagging import whole_word
from .text import Text
from .tokenizing import call_tokenizer
from .user_inputs import labelled_inputs, refuse_surrogates
from .vocabulary import special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PARTS = ("span", "start", "end")
"""What is explained: the sum of the start and end logits of a span, or one of the two."""

MOST_TOKENS = 30
"""The maximum number of tokens of an answer."""

MOST_POSITIONS = 4096
"""The maximum number of tokens of an input: spans are classes, so their number must be finite."""

_NEVER = -1e4
"""The score of spans that are not answers: outside the context, or with the end before the start."""


@dataclass(frozen=True)
class EncodedQuestion(EncodedText):
    """A tokenized question and its context, in one sequence."""

    question: str = field(kw_only=True)
    context: str = field(kw_only=True)
    inside: tuple[bool, ...] = field(kw_only=True)
    """Whether each token belongs to the context."""

    @property
    def offsets(self) -> tuple[tuple[int, int] | None, ...]:
        start = len(self.text) - len(self.context)
        return tuple(
            (start + span[0], start + span[1]) if span is not None and inside else span
            for span, inside in zip(self.spans, self.inside, strict=True)
        )

    @property
    def sections(self) -> tuple[tuple[str, int], ...]:
        border = self.inside.index(True)
        return (("question", border), ("context", len(self) - border))

    def span_of(self, answer: str) -> tuple[int, int] | None:
        """Return the first and the last token of the first occurrence of an answer in the context."""
        match = re.search(whole_word(answer), self.context)
        if match is None:
            return None
        start, end = match.span()
        tokens = enumerate(zip(self.spans, self.inside, strict=True))
        positions = [i for i, (span, inside) in tokens if inside and span and span[0] < end and start < span[1]]
        # In a truncated context the end of the answer may be missing.
        is_complete = bool(positions) and cast("tuple[int, int]", self.spans[positions[-1]])[1] >= end
        return (positions[0], positions[-1]) if is_complete else None

    def words_of(self, first: int, last: int) -> str:
        """Return the text of the context from one token to another."""
        offsets = self.encoding.offsets
        return self.context[offsets[first][0] : offsets[last][1]]


@dataclass(frozen=True)
class QuestionRows(TextRows):
    """A question and its context with different tokens removed in each row."""

    inside: np.ndarray = field(kw_only=True)


class Spans(Reading):
    """A question answering network as a classifier whose classes are the possible answers.

    The class of a span is position * MOST_TOKENS + length - 1, with the position of its first token. The class of a
    start or an end is its position.
    """

    def __init__(self, network: nn.Module, part: str, positions: int) -> None:
        super().__init__(network)
        self.part, self.classes = part, positions * (MOST_TOKENS if part == "span" else 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, context_mask: Tensor, **inputs: Any) -> Answer:
        """Return the scores of all possible answers in the context; other classes have a very low score."""
        output = self.ask(input_ids=input_ids, attention_mask=attention_mask, **inputs)
        start, end = getattr(output, "start_logits", None), getattr(output, "end_logits", None)
        if start is None or end is None:
            raise Error(
                f"{type(self.network).__name__} returns no start_logits and end_logits: load the model with "
                "AutoModelForQuestionAnswering."
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
    """Return for every position the values there and at the next ones: samples x positions x MOST_TOKENS."""
    return F.pad(x, (0, MOST_TOKENS - 1)).unfold(1, MOST_TOKENS, 1)


class Question(Text):
    """An extractive question answering model and its tokenizer; an input is (question, context).

    What is explained is the score of an answer: the sum of its start and end logits, or one of them. A target is an
    answer, given as text of the context, of which the first occurrence counts; a contrast of two answers, "a - b";
    or None for the model's answer, of at most 30 tokens. The probability is the softmax over all possible answers.

    Parameters
    ----------
    model
        A model with a question answering head, in evaluation mode.
    tokenizer
        Its tokenizer.
    name
        The name of the model in results.
    part
        Which score of an answer is explained: "span" for the sum of both logits, "start" or "end".

    Examples
    --------
    >>> task = conserva.Question(model, tokenizer)  # doctest: +SKIP
    >>> conserva.explain(task, ("Who wrote it?", "It was written by Ada."), "Ada").show()  # doctest: +SKIP
    """

    kind = ModelKind(
        "question answering model", "AutoModelForQuestionAnswering", "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES"
    )

    noun = "question with its context"
    checks_padding = False
    model: Spans

    def __init__(
        self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str | None = None, *, part: str = "span"
    ) -> None:
        if part not in PARTS:
            raise Error(f"part={part!r} is unknown: choose one of {', '.join(PARTS)}.")
        super().__init__(model, tokenizer, name, head=SINGLE_LABEL.name)
        if not getattr(tokenizer, "is_fast", False):
            raise Error(
                f"The tokenizer of {self.name} does not return offsets of its tokens: load a fast one, with "
                "AutoTokenizer."
            )
        self.part = part
        self.model = Spans(model, part, self.longest)

    @property
    def options(self) -> Mapping[str, Any]:
        return {"part": self.part}

    @property
    def longest(self) -> int:
        """The maximum number of tokens of an input."""
        return min(super().longest, MOST_POSITIONS)

    @property
    def labels(self) -> dict[str, int]:
        """Empty: answers are texts of their contexts."""
        return {}

    @property
    def classes(self) -> int:
        """The number of possible answers in the longest input."""
        return self.model.classes

    def is_single(self, given: Any) -> bool:
        return isinstance(given, tuple) and len(given) == 2 and all(isinstance(text, str) for text in given)

    def labelled(self, data: Any) -> Labelled:
        """Return questions with their answers, from a list of (question, context) or ((question, context), answer)."""
        given = labelled_inputs(self, data, "(question, context)")
        if given.labels is None:
            return given
        encoded = self.encode_all(given.texts, truncate=True)  # inputs that are too long are refused when they are used
        answers = tuple(self._class(str(label), pair) for label, pair in zip(given.labels, encoded, strict=True))
        return Labelled(given.texts, answers, given.source)

    def encode_all(self, texts: Sequence[Any], *, truncate: bool = False) -> list[EncodedText]:
        """Tokenize questions and contexts; with `truncate`, contexts of inputs that are too long are truncated."""
        return [self._pair(given, truncate) for given in texts]

    def _pair(self, given: Any, truncate: bool) -> EncodedQuestion:
        if not isinstance(given, (tuple, list)) or len(given) != 2 or not all(isinstance(x, str) for x in given):
            raise Error(f"{given!r:.60} is not a pair of texts: give (question, context).")
        for what, text in zip(("question", "context"), given, strict=True):
            if not text.strip():
                raise Error(f"{what}={text!r} is empty: give (question, context), both not empty.")
            refuse_surrogates(what, text)
        question, context = given
        own = call_tokenizer(self.tokenizer, question, add_special_tokens=False, verbose=False)["input_ids"]
        if truncate and len(own) + self.tokenizer.num_special_tokens_to_add(True) >= self.longest:
            raise Error(
                f"The question beginning {question[:40]!r} has {len(own)} tokens, which leaves none for a context: the "
                f"model takes {self.longest}. Shorten it."
            )
        output = call_tokenizer(
            self.tokenizer,
            [question],
            [context],
            truncation="only_second" if truncate else False,
            max_length=self.longest if truncate else None,
            return_token_type_ids=self.tells_types,
            verbose=False,
        )
        encoding, ids = output.encodings[0], list(output["input_ids"][0])
        special = special_ids(self.tokenizer)
        pair = self._encoded(f"{question} | {context}", ids, special, encoding, self.longest)
        inside = tuple(number == 1 for number in encoding.sequence_ids)
        if not any(inside):
            raise Error(f"context={context!r:.60} has no tokens in the tokenizer's vocabulary: give another context.")
        types = tuple(output["token_type_ids"][0]) if self.tells_types else None
        return EncodedQuestion(
            **{**vars(pair), "token_types": types}, question=question, context=context, inside=inside
        )

    def resolve_target(self, target: Any, encoded: EncodedQuestion) -> Any:
        if target is None:
            return None
        if not isinstance(target, str):
            raise Error(f"target={target!r}: give text of the context, 'a - b' for a contrast, or None.")
        parts = [target] if target in encoded.context else target.split(" - ", 1)
        classes = [self._class(part.strip(), encoded) for part in parts]
        return classes[0] if len(classes) == 1 else " - ".join(map(str, classes))

    def _class(self, answer: str, encoded: Any) -> int:
        """Return the class index of an answer."""
        span = encoded.span_of(answer) if answer.strip() else None
        if span is None:
            raise Error(
                f"target={answer!r} is not in the context {encoded.context!r:.60}, or was truncated with its end: give "
                "text as it is written there, or None for the model's answer."
            )
        first, last = span
        if last - first >= MOST_TOKENS:
            raise Error(f"target={answer!r:.60} has {last - first + 1} tokens: answers have at most {MOST_TOKENS}.")
        if self.part == "span":
            return int(first * MOST_TOKENS + last - first)
        return int(first if self.part == "start" else last)

    def target_title(self, target: Any, index: int | None, encoded: EncodedQuestion) -> str:
        """Return the answer of a target, as text of the context."""
        if index is None or isinstance(target, str):
            return self.target_name(target, index)
        first, following = divmod(index, MOST_TOKENS) if self.part == "span" else (index, 0)
        return encoded.words_of(first, first + following)

    def batch(self, encoded: Sequence[Any]) -> dict[str, Tensor]:
        """Return a batch, padded on the right to the longest input."""
        inputs = super().batch(encoded)
        return {**inputs, "context_mask": _padded([pair.inside for pair in encoded], inputs["input_ids"])}

    def masked(self, encoded: Any, kept: np.ndarray, mask: str) -> QuestionRows:
        inside = np.broadcast_to(np.array(encoded.inside, np.int64), kept.shape)
        return QuestionRows(**vars(super().masked(encoded, kept, mask)), inside=inside)

    def stack(self, parts: Sequence[Any]) -> dict[str, Tensor]:
        inputs = super().stack(parts)
        return {**inputs, "context_mask": _padded([row for part in parts for row in part.inside], inputs["input_ids"])}


def _padded(rows: Sequence[Any], ids: Tensor) -> Tensor:
    """Return rows of numbers as a tensor, padded with 0 to the shape of the ids."""
    array = np.zeros(tuple(ids.shape), np.int64)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return torch.from_numpy(array).to(ids.device, non_blocking=True)
