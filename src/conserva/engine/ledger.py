"""The ledger: an output as the sum of the relevance of inputs, positions and biases, and a gap.

This module does not import torch, so that saved results with ledgers can be loaded without it.
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

    The entries are floats for a single output, as in an Explanation, or tensors with one number per sample, as in a
    Relevance.

    Examples
    --------
    >>> one = conserva.explain(conserva.load(), "a joy.")
    >>> abs(one.ledger.output - one.output) < 1e-6
    True
    """

    inputs: Number
    """The relevance of the explained inputs."""
    positions: Number
    """The relevance of constants that depend on the position: position and segment embeddings, class tokens."""
    biases: Number
    """The relevance of constants that are the same at every position."""
    gap: Number
    """The output minus all other entries: rounding errors under `exact`; under other rule sets also relevance that the
    rules lose or count twice."""

    @classmethod
    def of(cls, output: Any, inputs: Any, positions: Any, biases: Any) -> Ledger[Any]:
        """Return the ledger of an output, with the gap computed from the other entries."""
        return Ledger(inputs, positions, biases, output - inputs - positions - biases)

    @property
    def output(self) -> Number:
        """The sum of the entries: the output, up to rounding."""
        entries: Any = (self.inputs, self.positions, self.biases, self.gap)
        total: Number = sum(entries)
        return total

    @property
    def gap_share(self) -> Number:
        """The size of the gap, from 0 to 1: `|gap| / (|inputs| + |positions| + |biases| + |gap|)`."""
        gap: Any = self.gap
        total: Any = self.size
        share: Number = abs(gap) / (total + (total == 0))  # 0, if all entries are
        return share

    @property
    def size(self) -> Number:
        """The sum of the sizes of the entries, to which rounding errors are relative."""
        entries: Any = (self.inputs, self.positions, self.biases, self.gap)
        size: Number = sum(map(abs, entries))
        return size

    def per_sample(self: Ledger[Tensor], output: Tensor) -> list[Ledger[float]]:
        """Return one ledger of floats per sample, with the gap computed in double precision."""
        columns = [column.tolist() for column in (output, self.inputs, self.positions, self.biases)]
        return [Ledger.of(*row) for row in zip(*columns, strict=True)]


ENTRIES = tuple(field.name for field in fields(Ledger))
"""The names of the entries."""
