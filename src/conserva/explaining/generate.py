"""Explaining what a model writes, token by token."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ..attribution import MethodLike, find, rules_of
from ..engine.memory import AUTO
from ..engine.rules import DEFAULT, RULE_SETS
from ..errors import Error
from ..results.generation import LOG_PROBABILITY, LOGIT, Generation
from ..tasks import Causal, Seq2Seq
from .generate_causal import explained_continuation
from .generate_seq2seq import explained_answer
from .generation_request import Request


def explain_generation(
    task: Causal | Seq2Seq,
    inputs: Any,
    *,
    continuation: str | None = None,
    tokens: int = 40,
    method: MethodLike = DEFAULT,
    score: str = LOGIT,
    truncate: bool = False,
    trusted: Collection[str] = (),
    checkpoint: str = AUTO,
    fingerprint: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Generation:
    """Explain every token that a model writes after a prompt, or in answer to a source.

    Parameters
    ----------
    task
        A language model, `conserva.Causal`, or an encoder-decoder, `conserva.Seq2Seq` or `conserva.Speech`.
    inputs
        One prompt: a text, or a chat as a list of {"role": ..., "content": ...}; for an encoder-decoder its source.
    continuation
        The text to explain, with the space before it if there is one; None for what the model itself writes, by greedy
        decoding, until it ends the text.
    tokens
        The largest number of tokens that the model writes.
    method
        The name of a rule set, with options as in "exact:gamma=0.1", or a rule set of your own.
    score
        What is explained: "logit", the logit of each token, or "log-probability". Under `exact` the ledgers of logits
        close. Those of log-probabilities leave a gap of exactly minus the entropy of the next token's distribution:
        log p = z - log(sum of exp z) is not proportional to the logits z, so that much cannot be assigned to a token.
    truncate
        Whether a prompt longer than the model takes is cut; otherwise it is refused.
    trusted, checkpoint
        As in `conserva.relevance`.
    fingerprint
        As in `conserva.explain`.
    progress
        Called with the number of tokens done, after every pass.

    Returns
    -------
    Generation
        For every written token, the relevance of all tokens before it.

    Examples
    --------
    >>> task = conserva.load("SmolLM2.gguf")  # doctest: +SKIP
    >>> conserva.explain_generation(task, "The capital of France is", tokens=5).show()  # doctest: +SKIP
    """
    if not isinstance(task, (Causal, Seq2Seq)):
        raise Error(f"task={task!r} writes nothing: use conserva.Causal(...), conserva.Seq2Seq(...) or their like.")
    found = find(method)
    rules = rules_of(found)
    if rules is None:
        raise Error(
            f"method={found.name!r} explains one token at a time: for all that was written choose one of "
            f"{', '.join(RULE_SETS)}, at the inputs."
        )
    if score not in (LOGIT, LOG_PROBABILITY):
        raise Error(f"score={score!r} is neither {LOGIT!r} nor {LOG_PROBABILITY!r}.")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise Error(f"tokens={tokens!r} writes nothing: give 1 or more.")
    request = Request(continuation, tokens, found, rules, score, truncate, trusted, checkpoint, fingerprint, progress)
    if isinstance(task, Seq2Seq):
        return explained_answer(task, inputs, request)
    return explained_continuation(task, inputs, request)
