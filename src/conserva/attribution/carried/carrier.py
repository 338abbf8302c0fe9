"""The context in which backward passes propagate relevance."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from torch import Tensor

from ...engine.constants import Unbatchable
from ...engine.context import Propagation
from ...engine.rules import RULE_SETS
from .readers import MOVING, READERS, moved, refused

if TYPE_CHECKING:
    from ...engine.operations.tensors import Reader
    from ...engine.sources import Sources


class Carrier(Propagation):
    """A context in which the gradient of a tensor is its relevance, by the rules of Chefer et al."""

    def __init__(self, sources: Sources, samples: int, wanted: Collection[int]) -> None:
        """Create the context.

        Parameters
        ----------
        sources
            The inputs.
        samples
            The batch size.
        wanted
            The numbers of the matrix products whose factors are kept in `factors`.
        """
        super().__init__(RULE_SETS["exact"], None, sources, READERS)
        self.samples = samples
        self.samples_moved = False
        self.products = 0
        self.wanted = wanted
        self.factors: dict[int, tuple[Tensor, Tensor]] = {}

    def default_reader(self, name: str) -> Reader:
        """Return the reader for a call without a rule: refused, unless it only moves values."""
        return moved if name in MOVING else refused

    def sample_axis(self, x: Tensor) -> int | None:
        """Return the batch dimension; None if there is only one sample."""
        if self.samples == 1:
            return None
        if self.samples_moved or not x.dim() or x.shape[0] != self.samples:
            raise Unbatchable
        return 0
