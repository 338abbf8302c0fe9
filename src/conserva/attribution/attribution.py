"""The result of every attribution method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from ..engine.ledger import Ledger


@dataclass(frozen=True)
class Attribution:
    """The scores of a method for a batch."""

    scores: Mapping[str, Tensor]
    """Name of an input -> its scores, samples x positions; those of padding are exactly 0."""
    output: Tensor
    """The explained number of each sample."""
    logits: Tensor | None
    """The logits of a classifier, samples x classes; None for other models."""
    ledger: Ledger[Tensor] | None = None
    """The ledger, if the method has one."""
