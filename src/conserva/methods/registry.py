"""The methods by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from ..errors import Error
from .gradient import Attribution, by_rule_set

Apply: TypeAlias = Callable[[nn.Module, Mapping[str, Tensor], Any], Attribution]
"""A method's function: the model, its batched inputs, and the target or targets -> scores for every token."""


@dataclass(frozen=True)
class Method:
    """A method's name, what it does, and its function."""

    name: str
    summary: str
    apply: Apply


_ALL = [
    Method("gi", "Gradient x Input: the plain gradient", by_rule_set("gi")),
    Method("ah", "LRP with attention heads read as linear (Ali et al. 2022)", by_rule_set("ah")),
    Method("ln", "LRP with norms read as linear (Ali et al. 2022)", by_rule_set("ln")),
    Method("ah+ln", "LRP with both: the paper's method, and the default", by_rule_set("ah+ln")),
    Method("exact", "ah+ln, with activations and products read as linear too: books that close", by_rule_set("exact")),
    Method(
        "attnlrp", "AttnLRP (Achtibat et al. 2024): relevance also through queries and keys", by_rule_set("attnlrp")
    ),
]


def methods() -> dict[str, str]:
    """Return the name of every method, and what it does."""
    return {method.name: method.summary for method in _ALL}


def find(name: str) -> Method:
    """Return the method of that name."""
    for method in _ALL:
        if method.name == name:
            return method
    near = difflib.get_close_matches(str(name), [method.name for method in _ALL], 1, 0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise Error(f"method={name!r} is unknown.{hint} There is {', '.join(method.name for method in _ALL)}.")
