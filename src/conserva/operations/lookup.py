"""Look-ups in tables: where token ids become numbers, and relevance ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..propagation import Propagation
    from .live import Reader


def embedding(
    context: Propagation, function: Callable[..., Any], input: Any, weight: Any, *args: Any, **kwargs: Any
) -> Any:
    """Read `embedding`: the rows of explained ids are inputs, all others constants."""
    out = function(input, weight, *args, **kwargs)
    if context.sources is not None:
        out = context.sources.looked_up(input, weight, out)
    context.name_as(out, weight)
    return out


READERS: dict[str, Reader] = {"embedding": embedding}
