"""The methods that are a rule set and one gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import Error
from ..ledger import Ledger
from ..relevance import relevance


@dataclass(frozen=True)
class Attribution:
    """What a method found: a score for every token, the explained numbers, and the books if it keeps any."""

    scores: Tensor
    output: Tensor
    logits: Tensor
    ledger: Ledger | None


def by_rule_set(rules: str) -> Callable[[nn.Module, Mapping[str, Tensor], Any], Attribution]:
    """Return the method that a rule set is."""

    def apply(model: nn.Module, inputs: Mapping[str, Tensor], target: Any) -> Attribution:
        result = relevance(model, inputs, target, rules=rules)
        if result.logits is None:
            raise Error(f"{type(model).__name__} is no classifier: it gives no score for each class.")
        return Attribution(result.scores(), result.output, result.logits, result.ledger)

    return apply
