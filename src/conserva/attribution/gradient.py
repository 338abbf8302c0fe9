"""The methods that consist of a rule set and one gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor, nn

from ..engine.passes import Relevance
from ..engine.relevance import relevance
from ..engine.rules import RuleSet, rule_set
from ..errors import NotApplicable
from .attribution import Attribution


def by_rule_set(name: str) -> Callable[..., Attribution]:
    """Return the method of a rule set.

    Relevance is computed at the word embeddings, or at the output of the embedding block, with position embeddings and
    norm: the input variable of Ali et al. (2022). Their code for IMDB has `gamma` 0.01.
    """

    def apply(
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        target: Any,
        *,
        at: Literal["inputs", "embeddings"] = "inputs",
        gamma: float = 0.0,
    ) -> Attribution:
        result = relevance(model, inputs, target, rules=rules_with(name, gamma), at=at)
        scores = {name: result.scores(name) for name in result.inputs} if at == "inputs" else _embedded(result)
        return Attribution(scores, result.output, result.logits, result.ledger)

    return apply


def rules_with(name: str, gamma: float) -> RuleSet:
    """Return a named rule set, with LRP-gamma for linear layers unless gamma is 0."""
    return rule_set(name, gamma=gamma) if gamma else rule_set(name)


def _embedded(result: Relevance) -> dict[str, Tensor]:
    """Return the scores at the embedding block under the name of its input."""
    if len(result.inputs) != 1 or len(result.values) != 1:
        raise NotApplicable(
            f"at=embeddings is defined for models with one sequence; this model has {', '.join(result.values)}."
        )
    return {next(iter(result.inputs)): result.scores()}
