"""Helpers of all readers: live tensors, scaled gradients, in-place results, precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor
from torch.autograd import Function

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..context import Propagation

    Reader = Callable[..., Any]
    """Makes a torch call under the rules: `reader(context, function, *args, **kwargs)` returns the call's result."""


def live(x: object) -> TypeGuard[Tensor]:
    """Return whether `x` carries relevance. Parameters never do: the context passes them to readers detached."""
    return isinstance(x, Tensor) and x.requires_grad


class PlainFunction(Function):
    """An autograd function with a fast `apply`, for functions that are called many times in a pass."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Call the function without torch's checks for old-style functions and functorch transforms, to save time."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)  # type: ignore[no-untyped-call]
        return super(Function, cls).apply(*args)  # type: ignore[misc]


class ScaleGradient(PlainFunction):
    """The identity, with the gradient multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None


def overwrite(target: Tensor, value: Tensor) -> Tensor:
    """Store the result of an in-place call in its target, whose previous value drops out of the graph."""
    return target.copy_(value)


def pass_through(context: Propagation, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a call without any change, parameters included."""
    return function(*args, **kwargs)


def in_float32(x: Tensor) -> Tensor:
    """Return `x` in float32, or unchanged in float64: sums and quotients in half precision are inaccurate."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
