"""What every method returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..engine.ledger import Ledger


@dataclass(frozen=True)
class Attribution:
    """What a method found for a batch: scores for every feature, the explained numbers, the books if it keeps any."""

    scores: Mapping[str, Tensor]
    """Input -> a score for each sample and place; pads get exactly 0."""
    output: Tensor
    logits: Tensor | None
    """A classifier's scores of every class."""
    ledger: Ledger[Tensor] | None = None
