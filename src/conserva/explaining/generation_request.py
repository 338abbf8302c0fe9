"""The checked arguments of `conserva.explain_generation`, shared by language models and encoder-decoders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..attribution import Method
from ..engine.passes import Relevance
from ..engine.relevance import relevance
from ..engine.rules import RuleSet

OTHERS = 5
"""The number of most probable tokens that are stored for each step."""


@dataclass(frozen=True)
class Request:
    """The checked arguments of `conserva.explain_generation`, without the task and the input."""

    continuation: str | None
    tokens: int
    method: Method
    rules: RuleSet
    score: str
    truncate: bool
    trusted: Collection[str]
    checkpoint: str
    fingerprint: bool
    progress: Callable[[int], None] | None

    def relevance(self, model: nn.Module, inputs: Mapping[str, Tensor], targets: Sequence[Any]) -> list[Relevance]:
        """Return the relevance for each target, from one forward pass."""
        return relevance(
            model, inputs, targets=targets, rules=self.rules, trusted=self.trusted, checkpoint=self.checkpoint
        )

    def done(self, tokens: int) -> None:
        """Call `progress`, if given, with the number of newly explained tokens."""
        if self.progress is not None:
            self.progress(tokens)
