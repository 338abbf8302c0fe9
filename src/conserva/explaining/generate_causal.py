"""What a language model writes after a prompt, explained by all tokens before it."""

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
from .explain import provenance_of
from .generation_request import OTHERS, Request

KEPT_BYTES = 2**29
"""The memory that the results of one forward pass may take before they are read: relevance of all tokens, logits."""


def explained_continuation(task: Causal, prompt: Any, request: Request) -> Generation:
    """Explain every token after a prompt by all tokens before it."""
    encoded = task.encode(prompt, truncate=request.truncate)
    if request.continuation is None:
        written = _written(task, encoded, request.tokens)
    else:
        written = _given(task, encoded, request.continuation)
    rows = _rows(task, [*encoded.ids, *written], len(encoded), request)
    return _generation(task, encoded, written, request, list(rows))


def _given(task: Causal, encoded: EncodedPrompt, continuation: str) -> list[int]:
    """Return the tokens of a continuation that was given."""
    if not isinstance(continuation, str) or not continuation:
        raise Error(
            f"continuation={continuation!r} is not a text: give what follows the prompt, or None to have it written."
        )
    found = task.vocabulary.following(encoded.text, continuation)
    if not found:
        raise Error(f"continuation={continuation!r:.60} holds nothing that the tokenizer knows.")
    _refuse_long(task, encoded, len(found), f"continuation={continuation[:40]!r}", "shorten one of them")
    return found


def _written(task: Causal, encoded: EncodedPrompt, tokens: int) -> list[int]:
    """Return the tokens that the model writes, the mark of the end included."""
    network: Any = task.network
    if not hasattr(network, "generate"):
        raise Error(f"{type(network).__name__} does not generate: give continuation=, the text that follows.")
    _refuse_long(task, encoded, tokens, f"tokens={tokens}", "ask for fewer tokens, or shorten the prompt")
    given = _inputs(task, encoded.ids)
    pad = task.tokenizer.pad_token_id
    settings = greedy(network, tokens)
    settings.update(pad_token_id=0 if pad is None else pad)
    with untouched(network), quiet_loading(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # settings for sampling, which other generations of this model use
        found = network.generate(**given, generation_config=settings, stopping_criteria=[interruptible])
    return [int(one) for one in found[0, len(encoded) :].tolist()]


def _refuse_long(task: Causal, encoded: EncodedPrompt, more: int, what: str, advice: str) -> None:
    read = len(encoded) + more - 1  # the last token is written, and never read
    if read > task.longest:
        raise Error(
            f"{what} after a prompt of {len(encoded)} tokens makes {read} tokens to read, the model takes "
            f"{task.longest}: {advice}."
        )


def _inputs(task: Causal, ids: Sequence[int], copies: int = 1) -> dict[str, Tensor]:
    rows = torch.tensor([list(ids)]).to(task.device).expand(copies, -1)
    return {"input_ids": rows, "attention_mask": torch.ones_like(rows)}


def _generation(
    task: Causal, encoded: EncodedPrompt, written: list[int], request: Request, rows: Sequence[_Row]
) -> Generation:
    """Return the result: what was written, the relevance of each token, and the most probable alternatives."""
    ids, start, vocabulary = [*encoded.ids, *written], len(encoded), task.vocabulary
    tokens = tuple(map(vocabulary.text, ids))
    added = set(task.tokenizer.all_special_ids)
    special = (*encoded.special, *(one in added for one in written))
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
                others=tuple((vocabulary.text(one), share) for one, share in others),
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
    )


def _probabilities(task: Causal, ids: Sequence[int], start: int) -> Tensor:
    """Return written tokens x vocabulary: what the model holds likely in the place of each."""
    inputs = _inputs(task, ids[:-1])
    read = torch.arange(start - 1, len(ids) - 1)[None]
    with untouched(task.model), torch.inference_mode():
        return in_float32(task.model(**inputs, read=read.to(task.device)).logits[0]).softmax(-1).cpu()


class _Row(NamedTuple):
    """Why one token was written."""

    scores: tuple[float, ...]
    output: float
    ledger: Ledger[float]


class _NotTogetherError(Error):
    """Copies side by side turned out to be explained one by one, where a function of them all has no meaning."""


def _rows(task: Causal, ids: Sequence[int], start: int, request: Request) -> Iterator[_Row]:
    """Yield the explanation of each written token, many from one forward pass."""
    copies, first = _copies(task, len(ids) - 1, len(ids) - start), start
    while first < len(ids):
        last = min(len(ids), first + copies * _rounds(task, len(ids) - 1, copies))
        try:
            found = _together(task, ids, range(first, last), copies, request)
        except (OutOfMemory, _NotTogetherError) as error:
            if copies == 1:
                raise
            copies = copies // 2 if isinstance(error, OutOfMemory) else 1
            continue
        yield from found
        request.done(last - first)
        first = last


def _copies(task: Causal, length: int, steps: int) -> int:
    """Return how many copies of the tokens lie side by side: on a GPU one gradient then serves as many tokens."""
    return max(1, min(steps, budget(None, task.model) // length)) if task.device.type == "cuda" else 1


def _rounds(task: Causal, length: int, copies: int) -> int:
    """Return how many gradients one forward pass serves, so that what they leave fits into memory."""
    table = task.network.get_input_embeddings()  # type: ignore[operator]
    width = int(getattr(table, "embedding_dim", 0)) or 1
    each = 4 * (length * width + 2 * task.classes)
    return max(1, KEPT_BYTES // (copies * each))


def _together(task: Causal, ids: Sequence[int], places: range, copies: int, request: Request) -> list[_Row]:
    """Explain the tokens at some places, from one forward pass over copies of what precedes the last one."""
    copies = min(copies, len(places))
    rounds = -(-len(places) // copies)
    # Where the last round has copies to spare, they explain the last token again.
    wanted = [[places[min(r * copies + c, len(places) - 1)] for c in range(copies)] for r in range(rounds)]
    inputs = _inputs(task, ids[: places[-1]], copies)
    read = torch.tensor(wanted).T.contiguous() - 1
    targets = [_target(r, [ids[place] for place in each], request.score) for r, each in enumerate(wanted)]
    found = request.relevance(task.model, {**inputs, "read": read.to(task.device)}, targets)
    rows = []
    for each, one in zip(wanted, found, strict=True):
        assert one.ledger is not None
        numbers = (one.scores().tolist(), one.output.tolist(), one.ledger.per_sample(one.output))
        for place, scores, output, ledger in zip(each, *numbers, strict=True):
            rows.append(_Row(tuple(scores[:place]), output, ledger))
    return rows[: len(places)]


def _target(place: int, tokens: list[int], score: str) -> Any:
    """Return what is explained of each copy, at one of the places that are read: a token's logit or log-probability."""
    if score == LOGIT:
        return [(place, token) for token in tokens]

    def log_probability(output: Any) -> Tensor:
        logits = in_float32(output.logits[:, place])
        if len(logits) != len(tokens):
            raise _NotTogetherError(f"{len(tokens)} copies are explained one at a time.")
        return logits.log_softmax(-1).gather(1, torch.tensor(tokens, device=logits.device)[:, None]).squeeze(1)

    return log_probability
