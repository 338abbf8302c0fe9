"""The context in which relevance is carried."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from torch import Tensor

from ...engine.context import Propagation
from ...engine.ledger import Unbatchable
from ...engine.rules import RULE_SETS
from .readers import MOVING, READERS, moved, refused

if TYPE_CHECKING:
    from ...engine.operations.tensors import Reader
    from ...engine.sources import Sources


class Carrier(Propagation):
    """The context in which relevance is carried, and the relevance of attention maps can be asked for."""

    def __init__(self, sources: Sources, samples: int, wanted: Collection[int]) -> None:
        super().__init__(RULE_SETS["exact"], None, sources, READERS)
        self.samples = samples
        self.samples_moved = False
        self.products = 0
        self.wanted = wanted
        self.factors: dict[int, tuple[Tensor, Tensor]] = {}

    def default_reader(self, name: str) -> Reader:
        """Return the reader of calls that have no rule: only those that move values are let through."""
        return moved if name in MOVING else refused

    def sample_axis(self, x: Tensor) -> int | None:
        """Return the axis that holds the samples; None if there is one sample alone."""
        if self.samples == 1:
            return None
        if self.samples_moved or not x.dim() or x.shape[0] != self.samples:
            raise Unbatchable
        return 0
