"""The methods that are a rule set and one gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ..relevance import relevance
from .attribution import Attribution


def by_rule_set(rules: str) -> Callable[[nn.Module, Mapping[str, Tensor], Any], Attribution]:
    """Return the method that a rule set is."""

    def apply(model: nn.Module, inputs: Mapping[str, Tensor], target: Any) -> Attribution:
        result = relevance(model, inputs, target, rules=rules)
        scores = {name: result.scores(name) for name in result.inputs}
        return Attribution(scores, result.output, result.logits, result.ledger)

    return apply
