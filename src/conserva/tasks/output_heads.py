"""Output heads: the meaning of a classifier's logits, and how they become probabilities.

The head is the first of these that is defined:

1. `head`, as given by the user.
2. `config.problem_type`: "single_label_classification", "multi_label_classification" or "regression". With one logit,
   the first two are a binary head.
3. A Sigmoid that sentence-transformers applies to the logits, in config_sentence_transformers.json or, in older files,
   `config.sentence_transformers["activation_fn"]` or `config.sbert_ce_default_activation_function`: with one logit a
   binary head, else a multi-label one.
4. `config.num_labels`: 1 is a regression, as in Hugging Face's losses; more is a single-label head.

A configuration does not distinguish ordinal heads from others, so they must be given.
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
"""The default names that transformers gives to labels."""


@dataclass(frozen=True)
class OutputHead:
    """A kind of output, which determines the meaning of the logits."""

    name: str
    summary: str
    probabilities: Callable[[Tensor], Tensor | None]
    """Logits, samples x classes -> the probability of every class; None if the outputs are not classes."""
    shown: Callable[[str, int, int], str] = lambda label, index, outputs: label
    """Label, its index, number of outputs -> the name of the target in results."""
    has_default: Callable[[int], bool] = lambda outputs: True
    """Number of outputs -> whether the highest output is the default target."""


def _softmax(logits: Tensor) -> Tensor | None:
    # The softmax of a single logit is always 1.
    return in_float32(logits).softmax(-1) if logits.shape[-1] > 1 else None


def _sigmoid(logits: Tensor) -> Tensor:
    return in_float32(logits).sigmoid()


def _sigmoid_of_one(logits: Tensor) -> Tensor:
    if logits.shape[-1] != 1:
        raise Error(
            f"head='binary' is for one logit, but the model returns {logits.shape[-1]}: choose 'single_label' or "
            "'multi_label'."
        )
    return _sigmoid(logits)


def _between_thresholds(scores: Tensor) -> Tensor:
    """Return the probability of every class; the logits of the thresholds are the differences of the scores."""
    above = in_float32(scores).diff(dim=-1).sigmoid()
    # Thresholds out of order would give negative probabilities.
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

OUTPUT_HEADS = {head.name: head for head in (SINGLE_LABEL, MULTI_LABEL, BINARY, REGRESSION, ORDINAL)}
"""Name -> head, as given by users."""

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
    """Return the head that a configuration describes; without a configuration, a single-label head."""
    outputs = getattr(config, "num_labels", None)
    problem = getattr(config, "problem_type", None)
    if problem is not None and problem not in _PROBLEM_TYPES:
        raise Error(
            f"config.problem_type={problem!r} is unknown: it may be {', '.join(_PROBLEM_TYPES)}. Choose the output "
            f"head with head=, one of {', '.join(OUTPUT_HEADS)}."
        )
    head = _PROBLEM_TYPES.get(str(problem))
    if head is None and _applies_sigmoid(config):
        head = MULTI_LABEL
    if outputs == 1:
        return BINARY if head in (SINGLE_LABEL, MULTI_LABEL) else REGRESSION
    return head or SINGLE_LABEL


def _applies_sigmoid(config: Any) -> bool:
    """Return whether sentence-transformers applies a sigmoid to the logits."""
    own = getattr(config, "sentence_transformers", None)
    named = own.get("activation_fn") if isinstance(own, dict) else None
    named = named or getattr(config, "sbert_ce_default_activation_function", None)
    return isinstance(named, str) and named.rpartition(".")[2] == "Sigmoid"


class ClassScores(Reading):
    """A network with K - 1 logits for thresholds (CORAL), converted to a score for each of K ordered classes.

    Logit j is the log-odds of being above class j. The score of a class is half the sum of the logits below it minus
    half the sum of the others. This is linear, so relevance is conserved; the difference between the scores of
    neighbouring classes is the logit between them; and if the logits decrease from threshold to threshold, the
    predicted class has the highest score. Conditional logits (CORN) have another meaning and are not supported.
    """

    classes: int

    def __init__(self, network: nn.Module, thresholds: int) -> None:
        super().__init__(network)
        self.classes = thresholds + 1

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Any) -> Answer:
        """Return the scores of all classes."""
        output = self.ask(input_ids=input_ids, attention_mask=attention_mask, **inputs)
        logits = output.logits
        signs = torch.ones(self.classes, self.classes - 1, dtype=logits.dtype, device=logits.device)
        return self.answer(F.linear(logits, signs.tril(-1) - signs / 2), output)
