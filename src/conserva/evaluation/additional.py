"""The metrics that are measured on request, because they cost forward passes of their own."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..errors import Error

MOST_SUBSETS = 100_000
"""The maximum number of random subsets of a sample."""


@dataclass(frozen=True)
class Additional:
    """Which of them are measured; by default none."""

    srg: bool = False
    """The symmetric relevance gain: one curve more for each method."""
    lds: int = 0
    """The number of random subsets of each sample for the linear datamodelling score, shared by all methods."""
    tau: bool = False
    """Kendall's tau with leave-one-out: one forward pass for each feature, shared by all methods."""

    def __post_init__(self) -> None:
        if type(self.lds) is not int or self.lds < 0 or self.lds == 1:
            raise Error(f"lds={self.lds!r}: give the number of subsets, 2 or more, or 0 for none.")
        if self.lds > MOST_SUBSETS:
            raise Error(f"lds={self.lds} is more than {MOST_SUBSETS:,}: give fewer subsets.")

    def settings(self) -> dict[str, Any]:
        """Return those that are measured, by name."""
        return {name: value for name, value in asdict(self).items() if value}
