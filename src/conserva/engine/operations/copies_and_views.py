"""Casts, copies and views, which pass on the trail of their argument."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .elementwise import Trail, known_trail, set_trail
from .tensors import live

if TYPE_CHECKING:
    from ..context import Propagation
    from .tensors import Reader


def copy(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read `clone`, `contiguous`, `to` and other casts."""
    out = function(input, *args, **kwargs)
    if not live(out):
        context.name_as(out, input)
    elif out is not input and context.rules.activation.follows and out.device == input.device:
        trail = known_trail(input) or Trail(input, 0, linear=True)
        set_trail(context, out, Trail(trail.source, trail.function, trail.linear))
    return out


def view(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read `view`, `reshape` and other views."""
    out = function(input, *args, **kwargs)
    if getattr(input, "conserva_trail", None) is not None or not out.requires_grad:  # false for most calls
        follow_trail_through_view(context, function, input, out, *args, **kwargs)
    return out


def follow_trail_through_view(
    context: Propagation, function: Callable[..., Any], input: Any, out: Any, *args: Any, **kwargs: Any
) -> None:
    """Set the trail of a view: the same elementwise function, applied to the same view of the source."""
    if not isinstance(out, Tensor):
        return
    if not live(out):
        context.name_as(out, input)
        return
    trail = known_trail(input) if context.rules.activation.follows and live(input) else None
    if trail is None or not trail.function or trail.source.shape != input.shape:
        return  # a copy is its own source
    with contextlib.suppress(RuntimeError):  # the strides of the source may not allow this view
        set_trail(context, out, Trail(function(trail.source, *args, **kwargs), trail.function, trail.linear))


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
