"""Readers of calls that have no entry in the table: linear calls, in-place calls, and calls that no rule changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .elementwise import computed_on_copy
from .tensors import live

if TYPE_CHECKING:
    from ..context import Propagation


def call_unchanged(context: Propagation, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a call without any change; parameters are constants in it."""
    return function(*args, **kwargs)


def linear_call(context: Propagation, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a linear call, and record which parameter its result was computed from."""
    out = function(*args, **kwargs)
    if args and context.constants is not None:
        context.name_as(out, args[0])
    return out


def in_place(context: Propagation, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make an in-place call on a copy: in place on a view, its node in the graph would be hidden by `CopySlices`."""
    if not args or not live(args[0]) or function.__name__ in _PLAIN_IN_PLACE:
        return function(*args, **kwargs)
    return computed_on_copy(context, args[0], lambda copy: function(copy.clone(), *args[1:], **kwargs))


_PLAIN_IN_PLACE = (
    "requires_grad_", "detach_", "retain_grad", "zero_", "fill_", "copy_", "set_", "resize_", "share_memory_",
)  # fmt: skip
"""In-place calls that compute nothing: they store a given value, or change the shape only."""
