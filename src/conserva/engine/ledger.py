"""The ledger: how an output splits among inputs, positions and biases, and what is left over.

This module imports no torch: saved results hold ledgers, too, and are read without it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Number = TypeVar("Number")


@dataclass(frozen=True)
class Ledger(Generic[Number]):
    """The entries whose sum is an output: `inputs + positions + biases + gap`.

    They are numbers for one output, as in an Explanation, or tensors with a number for each sample, as in a Relevance.

    Examples
    --------
    >>> one = conserva.explain(conserva.load(), "a joy.")
    >>> abs(one.ledger.output - one.output) < 1e-6
    True
    """

    inputs: Number
    """What the explained inputs get."""
    positions: Number
    """What the model adds at each position, whatever the input: position and segment embeddings, class tokens."""
    biases: Number
    """What the model adds at every position alike."""
    gap: Number
    """What no other entry accounts for: rounding under `exact`, what the rules lose or count twice under others."""

    @classmethod
    def of(cls, output: Any, inputs: Any, positions: Any, biases: Any) -> Ledger[Any]:
        """Return the ledger of an output; the gap is what the other entries leave of it."""
        return Ledger(inputs, positions, biases, output - inputs - positions - biases)

    @property
    def output(self) -> Number:
        """The sum of the entries: the output, up to rounding."""
        entries: Any = (self.inputs, self.positions, self.biases, self.gap)
        found: Number = sum(entries)
        return found

    def per_sample(self: Ledger[Tensor], output: Tensor) -> list[Ledger[float]]:
        """Return the ledger of each sample's output, whose gap is taken in double precision."""
        columns = [one.tolist() for one in (output, self.inputs, self.positions, self.biases)]
        return [Ledger.of(*row) for row in zip(*columns, strict=True)]


ENTRIES = tuple(one.name for one in fields(Ledger))
"""The names of the entries."""
