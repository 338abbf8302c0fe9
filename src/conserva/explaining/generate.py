"""`conserva.explain_generation`: explain generated text token by token."""

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
    """Explain every token that a model generates for a prompt or a source text.

    Parameters
    ----------
    task
        A language model (`conserva.Causal`) or an encoder-decoder (`conserva.Seq2Seq`, `conserva.Speech`).
    inputs
        A prompt: a text, or a chat as a list of {"role": ..., "content": ...}. For an encoder-decoder, its source.
    continuation
        The text to explain, including a leading space if there is one. None explains the model's own continuation:
        greedy decoding up to the end-of-sequence token.
    tokens
        The maximum number of tokens to generate.
    method
        The name of a rule set, optionally with options, such as "exact:gamma=0.1", or a custom rule set.
    score
        The explained quantity: "logit", the logit of each token, or "log-probability". Under `exact` the ledger of a
        logit closes. The ledger of a log-probability has a gap of minus the entropy of the next token's distribution:
        log p = z - log(sum of exp z) is not proportional to the logits z, so the entropy belongs to no token.
    truncate
        Whether to truncate a prompt that exceeds the model's maximum length. Otherwise it raises an error.
    trusted, checkpoint
        As in `conserva.relevance`.
    fingerprint
        As in `conserva.explain`.
    progress
        Called after every pass with the number of tokens that it explained.

    Returns
    -------
    Generation
        For every generated token, the relevance of all tokens before it.

    Examples
    --------
    >>> task = conserva.load("SmolLM2.gguf")  # doctest: +SKIP
    >>> conserva.explain_generation(task, "The capital of France is", tokens=5).show()  # doctest: +SKIP
    """
    if not isinstance(task, (Causal, Seq2Seq)):
        raise Error(
            f"task={task!r} does not generate text: use conserva.Causal(...), conserva.Seq2Seq(...) or "
            "conserva.Speech(...)."
        )
    chosen = find(method)
    rules = rules_of(chosen)
    if rules is None:
        raise Error(
            f"method={chosen.name!r} cannot explain a generation, which needs a rule set at the inputs: choose one of "
            f"{', '.join(RULE_SETS)}."
        )
    if score not in (LOGIT, LOG_PROBABILITY):
        raise Error(f"score={score!r} is neither {LOGIT!r} nor {LOG_PROBABILITY!r}.")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise Error(f"tokens={tokens!r} is not a positive integer: give 1 or more.")
    request = Request(continuation, tokens, chosen, rules, score, truncate, trusted, checkpoint, fingerprint, progress)
    if isinstance(task, Seq2Seq):
        return explained_answer(task, inputs, request)
    return explained_continuation(task, inputs, request)
