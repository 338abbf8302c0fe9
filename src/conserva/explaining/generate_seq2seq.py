"""Explain an encoder-decoder's output token by token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..engine.operations.tensors import in_float32
from ..engine.passes import Relevance
from ..engine.untouched import untouched
from ..errors import Error
from ..results.generation import LOGIT, Generation, Step
from ..tasks.seq2seq import SO_FAR, SOURCE, EncodedPair, Seq2Seq
from .explained import provenance_of
from .generation_request import OTHERS, Request


def explained_answer(task: Seq2Seq, source: Any, request: Request) -> Generation:
    """Explain every token of an answer by the source and by the answer's tokens before it.

    `source` may be a pair (source, beginning of the answer); the beginning is an input and is not explained.
    """
    read = task.encode(source, truncate=request.truncate)
    so_far = source[1] if isinstance(source, tuple) and isinstance(source[-1], str) else ""
    written = _answer(task, read, so_far, request.continuation, request.tokens)
    whole = task.pair(read.source, (*read.answer, *written))
    given = task.pair(read.source, whole.answer[:-1])
    inputs = {name: x for name, x in task.batch([given]).items() if name != "read"}
    positions = [len(read.answer) - 1 + i for i in range(len(written))]
    with untouched(task.model), torch.no_grad():
        logits: Tensor = task.model(**inputs).logits[0, positions].float().cpu()
    entries = list(zip(positions, written, strict=True))
    targets: list[Any] = entries if request.score == LOGIT else [_log_probability(*entry) for entry in entries]
    rows = request.relevance(task.model, inputs, targets)
    request.done(len(written))
    texts, start = whole.tokens, len(read)
    steps = enumerate(zip(rows, logits, written, strict=True), start)
    return Generation(
        features=texts,
        special=whole.special,
        words=whole.words,
        start=start,
        steps=tuple(_step(task, feature, texts, *step) for feature, step in steps),
        text=read.text,
        written=str(task.tokenizer.decode(written, skip_special_tokens=True)),
        score=request.score,
        method=request.method.name,
        model=task.name,
        provenance=provenance_of(task, request.method, request.fingerprint),
        sections=((SOURCE, whole.parts[0]), (SO_FAR, whole.parts[1])),
        offsets=whole.offsets,
        unknown=whole.unknown,
    )


def _answer(task: Seq2Seq, read: EncodedPair, so_far: str, answer: str | None, tokens: int) -> list[int]:
    """Return the token ids of the answer to explain: those of `answer`, or generated ones if it is None."""
    if answer is None:
        return task.generated(read, tokens)
    if not isinstance(answer, str):
        raise Error(f"continuation={answer!r} is not a string: give a text, or None to let the model generate it.")
    ids = task.vocabulary.following(so_far, answer) if answer else []
    if not ids:
        raise Error(f"continuation={answer!r} is empty: give a text, or None to let the model generate it.")
    return ids


def _log_probability(position: int, token: int) -> Callable[[Any], Tensor]:
    def log_probability(output: Any) -> Tensor:
        scores: Tensor = in_float32(output.logits[:, position]).log_softmax(-1)
        return scores[:, token]

    return log_probability


def _step(task: Seq2Seq, feature: int, texts: tuple[str, ...], row: Relevance, logits: Tensor, token: int) -> Step:
    """Return the explanation of one generated token, with a score for each of the features before it."""
    scores = torch.cat([row.scores(name)[0] for name in task.features])[:feature].tolist()
    probabilities = logits.softmax(-1)
    highest = probabilities.topk(min(OTHERS, len(probabilities)))
    others = zip(highest.indices.tolist(), highest.values.tolist(), strict=True)
    assert row.ledger is not None
    return Step(
        token=texts[feature],
        scores=tuple(scores),
        output=float(row.output),
        probability=float(probabilities[token]),
        ledger=row.ledger.per_sample(row.output)[0],
        others=tuple((task.vocabulary.text(other), probability) for other, probability in others),
    )
