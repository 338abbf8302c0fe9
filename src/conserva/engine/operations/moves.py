"""Casts, copies and views: an elementwise function stays the same function through them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .elementwise import Trail, known_trail, leave_trail
from .tensors import live

if TYPE_CHECKING:
    from ..context import Propagation
    from .tensors import Reader


def copy(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read `clone`, `contiguous`, `to` and other casts: the same elements, perhaps in another type."""
    out = function(input, *args, **kwargs)
    if not live(out):
        context.name_as(out, input)
    elif out is not input and context.rules.activation.freezes and out.device == input.device:
        trail = known_trail(input) or Trail(input, 0, linear=True)
        leave_trail(context, out, Trail(trail.source, trail.function, trail.linear))
    return out


def view(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read `view`, `reshape` and their like: a function of the source in that shape."""
    out = function(input, *args, **kwargs)
    if getattr(input, "conserva_trail", None) is not None or not out.requires_grad:  # as for most it is not
        follow_view(context, function, input, out, *args, **kwargs)
    return out


def follow_view(
    context: Propagation, function: Callable[..., Any], input: Any, out: Any, *args: Any, **kwargs: Any
) -> None:
    """Note that what a call made of an elementwise function is that function of what it makes of the source."""
    if not isinstance(out, Tensor):
        return
    if not live(out):
        context.name_as(out, input)
        return
    trail = known_trail(input) if context.rules.activation.freezes and live(input) else None
    if trail is None or not trail.function or trail.source.shape != input.shape:
        return  # a mere copy is a source itself
    with contextlib.suppress(RuntimeError):  # the source may lie in memory in another order, where it has no such view
        leave_trail(context, out, Trail(function(trail.source, *args, **kwargs), trail.function, trail.linear))


_COPIES = (
    "clone", "contiguous", "to", "float", "double", "half", "bfloat16", "type", "type_as", "cpu",
    "cuda",
)  # fmt: skip
_VIEWS = (
    "view",
    "view_as",
    "reshape",
    "flatten",
    "unflatten",
    "unsqueeze",
    "squeeze",
    "expand",
    "expand_as",
    "narrow",
    "select",
)

READERS: dict[str, Reader] = {
    **dict.fromkeys(_COPIES, copy),
    **dict.fromkeys(_VIEWS, view),
}
