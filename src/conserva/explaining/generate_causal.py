"""Explain a language model's continuation of a prompt: each generated token by all tokens before it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..engine.ledger import Ledger
from ..engine.operations.tensors import in_float32
from ..engine.untouched import untouched
from ..errors import Error, OutOfMemory
from ..models.quiet import quiet_loading
from ..results.generation import LOGIT, Generation, Step
from ..tasks import Causal
from ..tasks.batches import budget
from ..tasks.prompts import EncodedPrompt, words_of
from ..tasks.writer import greedy, interruptible
from .explained import provenance_of
from .generation_request import OTHERS, Request

KEPT_BYTES = 2**29
"""The maximum memory for the results of one forward pass, relevance and logits, before they are copied to lists."""


def explained_continuation(task: Causal, prompt: Any, request: Request) -> Generation:
    """Explain every token after a prompt by all tokens before it."""
    encoded = task.encode(prompt, truncate=request.truncate)
    if request.continuation is None:
        written = _generated(task, encoded, request.tokens)
    else:
        written = _tokenized(task, encoded, request.continuation)
    rows = _rows(task, [*encoded.ids, *written], len(encoded), request)
    return _generation(task, encoded, written, request, list(rows))


def _tokenized(task: Causal, encoded: EncodedPrompt, continuation: str) -> list[int]:
    """Return the token ids of a continuation given by the user."""
    if not isinstance(continuation, str) or not continuation:
        raise Error(
            f"continuation={continuation!r} is empty or not a string: give the text that follows the prompt, or None "
            "to let the model generate it."
        )
    ids = task.vocabulary.following(encoded.text, continuation)
    if not ids:
        raise Error(f"continuation={continuation!r:.60} has no tokens: the tokenizer drops all of its characters.")
    _refuse_long(task, encoded, len(ids), f"continuation={continuation[:40]!r}", "shorten one of them")
    return ids


def _generated(task: Causal, encoded: EncodedPrompt, tokens: int) -> list[int]:
    """Return the token ids that the model generates, the end-of-sequence token included."""
    network: Any = task.network
    if not hasattr(network, "generate"):
        raise Error(
            f"{type(network).__name__} has no method generate: give the text that follows the prompt as continuation=."
        )
    _refuse_long(task, encoded, tokens, f"tokens={tokens}", "ask for fewer tokens, or shorten the prompt")
    given = _inputs(task, encoded.ids)
    pad = task.tokenizer.pad_token_id
    settings = greedy(network, tokens)
    settings.update(pad_token_id=0 if pad is None else pad)
    with untouched(network), quiet_loading(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model's generation config may have sampling options, unused by greedy
        output = network.generate(**given, generation_config=settings, stopping_criteria=[interruptible])
    return [int(token) for token in output[0, len(encoded) :].tolist()]


def _refuse_long(task: Causal, encoded: EncodedPrompt, more: int, what: str, advice: str) -> None:
    read = len(encoded) + more - 1  # the last token is generated, but never an input
    if read > task.longest:
        raise Error(
            f"{what} after a prompt of {len(encoded)} tokens makes {read} input tokens, but the model's maximum is "
            f"{task.longest}: {advice}."
        )


def _inputs(task: Causal, ids: Sequence[int], copies: int = 1) -> dict[str, Tensor]:
    rows = torch.tensor([list(ids)]).to(task.device).expand(copies, -1)
    return {"input_ids": rows, "attention_mask": torch.ones_like(rows)}


def _generation(
    task: Causal, encoded: EncodedPrompt, written: list[int], request: Request, rows: Sequence[_Row]
) -> Generation:
    """Build the result: the generated text, each token's relevance, and the most probable alternatives."""
    ids, start, vocabulary = [*encoded.ids, *written], len(encoded), task.vocabulary
    tokens = tuple(map(vocabulary.text, ids))
    added = set(task.tokenizer.all_special_ids)
    special = (*encoded.special, *(token in added for token in written))
    probabilities = _probabilities(task, ids, start)
    steps = []
    for row, token, likely in zip(rows, written, probabilities, strict=True):
        top = likely.topk(min(OTHERS, len(likely)))
        others = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        steps.append(
            Step(
                token=vocabulary.text(token),
                scores=row.scores,
                output=row.output,
                probability=float(likely[token]),
                ledger=row.ledger,
                others=tuple((vocabulary.text(other), probability) for other, probability in others),
            )
        )
    return Generation(
        features=tokens,
        special=special,
        words=words_of(tokens, special),
        start=start,
        steps=tuple(steps),
        text=encoded.text,
        written=str(task.tokenizer.decode(written, skip_special_tokens=True)),
        score=request.score,
        method=request.method.name,
        model=task.name,
        provenance=provenance_of(task, request.method, request.fingerprint),
        sink=encoded.sink,
        offsets=(*encoded.offsets, *(None,) * len(written)),
        unknown=(*encoded.unknown, *(token == task.tokenizer.unk_token_id for token in written)),
    )


def _probabilities(task: Causal, ids: Sequence[int], start: int) -> Tensor:
    """Return the next-token probabilities at each generated token: generated tokens x vocabulary."""
    inputs = _inputs(task, ids[:-1])
    read = torch.arange(start - 1, len(ids) - 1)[None]
    with untouched(task.model), torch.inference_mode():
        return in_float32(task.model(**inputs, read=read.to(task.device)).logits[0]).softmax(-1).cpu()


class _Row(NamedTuple):
    """The explanation of one generated token."""

    scores: tuple[float, ...]
    output: float
    ledger: Ledger[float]


class _NotTogetherError(Error):
    """The copies in a batch are explained one at a time, but the target is a function of the whole batch."""


def _rows(task: Causal, ids: Sequence[int], start: int, request: Request) -> Iterator[_Row]:
    """Yield the explanation of each generated token, several from one forward pass."""
    copies, first = _copies(task, len(ids) - 1, len(ids) - start), start
    while first < len(ids):
        last = min(len(ids), first + copies * _rounds(task, len(ids) - 1, copies))
        try:
            rows = _together(task, ids, range(first, last), copies, request)
        except (OutOfMemory, _NotTogetherError) as error:
            if copies == 1:
                raise
            copies = copies // 2 if isinstance(error, OutOfMemory) else 1
            continue
        yield from rows
        request.done(last - first)
        first = last


def _copies(task: Causal, length: int, steps: int) -> int:
    """Return the batch size: on a GPU the text is repeated, so that one backward pass explains several tokens."""
    return max(1, min(steps, budget(None, task.model) // length)) if task.device.type == "cuda" else 1


def _rounds(task: Causal, length: int, copies: int) -> int:
    """Return the number of backward passes per forward pass whose results fit into `KEPT_BYTES`."""
    table = task.network.get_input_embeddings()  # type: ignore[operator]
    width = int(getattr(table, "embedding_dim", 0)) or 1
    bytes_per_copy = 4 * (length * width + 2 * task.classes)
    return max(1, KEPT_BYTES // (copies * bytes_per_copy))


def _together(task: Causal, ids: Sequence[int], positions: range, copies: int, request: Request) -> list[_Row]:
    """Explain the tokens at `positions` from one forward pass over copies of the tokens before the last position."""
    copies = min(copies, len(positions))
    rounds = -(-len(positions) // copies)
    # Spare copies in the last round explain the last token again.
    explained = [[positions[min(r * copies + c, len(positions) - 1)] for c in range(copies)] for r in range(rounds)]
    inputs = _inputs(task, ids[: positions[-1]], copies)
    read = torch.tensor(explained).T.contiguous() - 1
    targets = [_target(r, [ids[position] for position in round_], request.score) for r, round_ in enumerate(explained)]
    results = request.relevance(task.model, {**inputs, "read": read.to(task.device)}, targets)
    rows = []
    for round_, result in zip(explained, results, strict=True):
        assert result.ledger is not None
        numbers = (result.scores().tolist(), result.output.tolist(), result.ledger.per_sample(result.output))
        for position, scores, output, ledger in zip(round_, *numbers, strict=True):
            rows.append(_Row(tuple(scores[:position]), output, ledger))
    return rows[: len(positions)]


def _target(index: int, tokens: list[int], score: str) -> Any:
    """Return the target of each copy, at an index into the model's logits: a token's logit or log-probability."""
    if score == LOGIT:
        return [(index, token) for token in tokens]

    def log_probability(output: Any) -> Tensor:
        logits = in_float32(output.logits[:, index])
        if len(logits) != len(tokens):
            raise _NotTogetherError(f"{len(tokens)} copies are explained one at a time.")
        return logits.log_softmax(-1).gather(1, torch.tensor(tokens, device=logits.device)[:, None]).squeeze(1)

    return log_probability
