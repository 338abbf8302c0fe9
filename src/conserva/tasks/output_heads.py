"""Output heads: what a classifier's logits say, and which of them have a probability.

A head is decided by the model's configuration, as Hugging Face and sentence-transformers write it, in this order:

1. `head`, where the user gives one.
2. `config.problem_type`: "single_label_classification", "multi_label_classification" or "regression". With one logit,
   the first two are a binary head.
3. A Sigmoid that sentence-transformers applies to the logits, in `config.sentence_transformers["activation_fn"]` or, in
   older files, `config.sbert_ce_default_activation_function`: a binary head with one logit, else a multi-label one.
4. `config.num_labels`: one is a regression, as in Hugging Face's own losses; more are a single-label head.

An ordinal head cannot be told from others by a configuration, and must be given.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..engine.operations.tensors import in_float32
from ..errors import Error
from .reading import Answer, Reading

_GENERIC = re.compile(r"LABEL_\d+")
"""The name that transformers gives to a label without one."""


@dataclass(frozen=True)
class OutputHead:
    """A kind of output: what its logits say."""

    name: str
    summary: str
    probabilities: Callable[[Tensor], Tensor | None]
    """Logits of samples x classes -> the probability of every class; None where the outputs are not classes."""
    shown: Callable[[str, int, int], str] = lambda label, index, outputs: label
    """A label, its index, the number of outputs -> the target's name in results."""
    has_default: Callable[[int], bool] = lambda outputs: True
    """The number of outputs -> whether the highest one is what is explained when no target is given."""


def _softmax(logits: Tensor) -> Tensor | None:
    # Over a single logit a softmax is 1, whatever the model says.
    return in_float32(logits).softmax(-1) if logits.shape[-1] > 1 else None


def _sigmoid(logits: Tensor) -> Tensor:
    return in_float32(logits).sigmoid()


def _sigmoid_of_one(logits: Tensor) -> Tensor:
    if logits.shape[-1] != 1:
        raise Error(
            f"head='binary' reads one logit, but the model gives {logits.shape[-1]}: choose 'single_label' or "
            "'multi_label'."
        )
    return _sigmoid(logits)


def _between_thresholds(scores: Tensor) -> Tensor:
    """Return the probability of every class; the thresholds' logits are the steps between the scores."""
    above = in_float32(scores).diff(dim=-1).sigmoid()
    # Thresholds out of order would make a class less likely than impossible.
    return (F.pad(above, (1, 0), value=1.0) - F.pad(above, (0, 1), value=0.0)).clamp(min=0.0)


def _shown_output(label: str, index: int, outputs: int) -> str:
    if not _GENERIC.fullmatch(label) and label != str(index):
        return label
    return "output" if outputs <= 1 else f"output {index}"


SINGLE_LABEL = OutputHead("single_label", "one class of several: softmax of the logits", _softmax)
MULTI_LABEL = OutputHead("multi_label", "each class by itself: sigmoid of its own logit", _sigmoid)
BINARY = OutputHead("binary", "one logit, for one class or against it: its sigmoid", _sigmoid_of_one)
REGRESSION = OutputHead(
    "regression",
    "numbers, not classes: no probability",
    lambda logits: None,
    shown=_shown_output,
    has_default=lambda outputs: outputs <= 1,
)
ORDINAL = OutputHead(
    "ordinal",
    "K ordered classes from K - 1 logits, each of being above a class: differences of their sigmoids",
    _between_thresholds,
)

OUTPUT_HEADS = {one.name: one for one in (SINGLE_LABEL, MULTI_LABEL, BINARY, REGRESSION, ORDINAL)}
"""Name -> head, as users give it."""

_PROBLEM_TYPES = {
    "single_label_classification": SINGLE_LABEL,
    "multi_label_classification": MULTI_LABEL,
    "regression": REGRESSION,
}


def head_named(name: str) -> OutputHead:
    """Return a head by its name."""
    if name not in OUTPUT_HEADS:
        raise Error(f"head={name!r} is unknown: choose one of {', '.join(OUTPUT_HEADS)}, or None for the model's own.")
    return OUTPUT_HEADS[name]


def configured_head(config: Any) -> OutputHead:
    """Return the head that a configuration describes; without a configuration a single-label one."""
    outputs = getattr(config, "num_labels", None)
    problem = getattr(config, "problem_type", None)
    if problem is not None and problem not in _PROBLEM_TYPES:
        raise Error(
            f"config.problem_type={problem!r} is unknown: it may be {', '.join(_PROBLEM_TYPES)}. Say what the logits "
            f"are with head=, one of {', '.join(OUTPUT_HEADS)}."
        )
    found = _PROBLEM_TYPES.get(str(problem))
    if found is None and _applies_sigmoid(config):
        found = MULTI_LABEL
    if outputs == 1:
        return BINARY if found in (SINGLE_LABEL, MULTI_LABEL) else REGRESSION
    return found or SINGLE_LABEL


def _applies_sigmoid(config: Any) -> bool:
    """Return whether sentence-transformers puts a Sigmoid behind the logits."""
    own = getattr(config, "sentence_transformers", None)
    named = own.get("activation_fn") if isinstance(own, dict) else None
    named = named or getattr(config, "sbert_ce_default_activation_function", None)
    return isinstance(named, str) and named.rpartition(".")[2] == "Sigmoid"


class ClassScores(Reading):
    """A network with K - 1 logits of thresholds (CORAL), read as a score for each of K ordered classes.

    Logit j is the log-odds of being above class j. The score of a class is half the sum of the logits below it less
    half the sum of the others: linear, so that relevance is conserved; the step from one class to the next is the logit
    between them; and where the logits fall from threshold to threshold, the highest score is that of the predicted
    class. Logits that are conditional on the threshold before (CORN) mean something else and are not for this head.
    """

    classes: int

    def __init__(self, network: nn.Module, thresholds: int) -> None:
        super().__init__(network)
        self.classes = thresholds + 1

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **asked: Any) -> Answer:
        """Return the scores of all classes."""
        output = self.ask(input_ids=input_ids, attention_mask=attention_mask, **asked)
        logits = output.logits
        signs = torch.ones(self.classes, self.classes - 1, dtype=logits.dtype, device=logits.device)
        return self.answer(F.linear(logits, signs.tril(-1) - signs / 2), output)
