"""From a prompt to a generation: every token that was written, explained by all tokens before it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..attribution import Method, find, rules_of
from ..engine.ledger import Ledger
from ..engine.operations.tensors import in_float32
from ..engine.relevance import relevance
from ..engine.rules import RULE_SETS, RuleSet
from ..engine.untouched import untouched
from ..errors import Error, OutOfMemory
from ..models.quiet import quiet_loading
from ..results.generation import LOG_PROBABILITY, LOGIT, Generation, Step
from ..tasks import Causal, Seq2Seq
from ..tasks.batches import budget
from ..tasks.prompts import EncodedPrompt, words_of
from ..tasks.writer import greedy, interruptible
from .explain import provenance_of
from .generate_seq2seq import explained_answer

KEPT_BYTES = 2**29
"""What the results of one forward pass may take before they are read: the relevance of all tokens, and logits."""

OTHERS = 5
"""How many of the most probable tokens are named for each step."""


def generation(
    task: Causal | Seq2Seq,
    prompt: Any,
    continuation: str | None = None,
    *,
    tokens: int = 40,
    method: str | None = None,
    score: str = LOGIT,
    truncate: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Generation:
    """Explain every token that a model writes, or would have to write: after a prompt, or in answer to a source.

    Parameters
    ----------
    task
        A language model, `conserva.Causal`, or an encoder-decoder, `conserva.Seq2Seq` or `conserva.Speech`.
    prompt
        A text, or a chat as a list of {"role": ..., "content": ...}; for an encoder-decoder what it takes.
    continuation
        What follows the prompt, with the space before it if there is one; None for what the model itself writes, the
        most likely token each time, until it ends the text.
    tokens
        How many tokens the model writes at most.
    method
        A rule set's name, with `gamma` if it has one, as in `conserva.explain`; None for the task's own.
    score
        What is explained: "logit", the score of each token, or "log-probability". Under `exact` the books of logits
        close; those of a log-probability leave minus the entropy of all tokens that might have come, exactly: that much
        of it cannot be assigned to a token, since log p = z - log(sum of exp z) is not proportional to the scores z.
    truncate
        Whether a prompt longer than the model takes is cut; otherwise it is refused.
    progress
        Called with the number of tokens done, after every pass.
    """
    if not isinstance(task, (Causal, Seq2Seq)):
        raise Error(f"task={task!r} writes nothing: use conserva.Causal(...), conserva.Seq2Seq(...) or their like.")
    found = find(task.method if method is None else method)
    rules = _rules(found)
    if score not in (LOGIT, LOG_PROBABILITY):
        raise Error(f"score={score!r} is neither {LOGIT!r} nor {LOG_PROBABILITY!r}.")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise Error(f"tokens={tokens!r} writes nothing: give 1 or more.")
    if isinstance(task, Seq2Seq):
        return explained_answer(task, prompt, continuation, tokens, found, rules, score, truncate, progress)
    encoded = task.encode(prompt, truncate=truncate)
    written = _written(task, encoded, tokens) if continuation is None else _given(task, encoded, continuation)
    rows = _rows(task, [*encoded.ids, *written], len(encoded), rules, score, progress)
    return _generation(task, encoded, written, found, score, list(rows))


def _rules(method: Method) -> RuleSet:
    """Return the rule set that a method is; others do not explain many tokens from one pass."""
    found = rules_of(method)
    if found is None:
        raise Error(
            f"method={method.name!r} explains one token at a time: for all that was written choose one of "
            f"{', '.join(RULE_SETS)}, at the inputs."
        )
    return found


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
    task: Causal, encoded: EncodedPrompt, written: list[int], method: Method, score: str, rows: Sequence[_Row]
) -> Generation:
    """Put together what was written, why, and what might have been."""
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
        score=score,
        method=method.name,
        model=task.name,
        provenance=provenance_of(task, method),
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


def _rows(
    task: Causal, ids: Sequence[int], start: int, rules: RuleSet, score: str, progress: Callable[[int], None] | None
) -> Iterator[_Row]:
    """Yield the explanation of each written token, many from one forward pass."""
    copies, first = _copies(task, len(ids) - 1, len(ids) - start), start
    while first < len(ids):
        last = min(len(ids), first + copies * _rounds(task, len(ids) - 1, copies))
        try:
            found = _together(task, ids, range(first, last), copies, rules, score)
        except (OutOfMemory, _NotTogetherError) as error:
            if copies == 1:
                raise
            copies = copies // 2 if isinstance(error, OutOfMemory) else 1
            continue
        yield from found
        if progress is not None:
            progress(last - first)
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


def _together(task: Causal, ids: Sequence[int], places: range, copies: int, rules: RuleSet, score: str) -> list[_Row]:
    """Explain the tokens at some places, from one forward pass over copies of what precedes the last one."""
    copies = min(copies, len(places))
    rounds = -(-len(places) // copies)
    # Where the last round has copies to spare, they explain the last token again.
    wanted = [[places[min(r * copies + c, len(places) - 1)] for c in range(copies)] for r in range(rounds)]
    inputs = _inputs(task, ids[: places[-1]], copies)
    read = torch.tensor(wanted).T.contiguous() - 1
    targets = [_target(r, [ids[place] for place in each], score) for r, each in enumerate(wanted)]
    found = relevance(task.model, {**inputs, "read": read.to(task.device)}, targets=targets, rules=rules)
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
