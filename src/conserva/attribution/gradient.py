"""The methods that consist of a rule set and one gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from torch import Tensor, nn

from ..engine.memory import AUTO
from ..engine.passes import Relevance
from ..engine.relevance import relevance
from ..engine.rules import RuleSet
from ..errors import NotApplicable
from .attribution import Attribution


def by_rule_set(
    rules: RuleSet,
    trusted: Collection[str] = (),
    checkpoint: str = AUTO,
    at: Literal["inputs", "embeddings"] = "inputs",
) -> Callable[..., Attribution]:
    """Return the method of a rule set.

    Parameters
    ----------
    rules
        The rule set.
    at
        Where relevance is read: at the word embeddings, or at the output of the embedding block, with position
        embeddings and norm: the input variable of Ali et al. (2022).
    trusted, checkpoint
        As in `conserva.relevance`.
    """

    def apply(model: nn.Module, inputs: Mapping[str, Tensor], target: Any) -> Attribution:
        result = relevance(model, inputs, target, rules=rules, at=at, trusted=trusted, checkpoint=checkpoint)
        scores = {name: result.scores(name) for name in result.inputs} if at == "inputs" else _embedded(result)
        return Attribution(scores, result.output, result.logits, result.ledger)

    return apply


def _embedded(result: Relevance) -> dict[str, Tensor]:
    """Return the scores at the embedding block under the name of its input."""
    if len(result.inputs) != 1 or len(result.values) != 1:
        raise NotApplicable(
            f"at=embeddings is defined for models with one sequence; this model has {', '.join(result.values)}."
        )
    return {next(iter(result.inputs)): result.scores()}
