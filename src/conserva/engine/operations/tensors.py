"""What is live, what is constant, and how much of a gradient passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor
from torch.autograd import Function

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..context import Propagation

    Reader = Callable[..., Any]
    """How one torch call is read: `reader(context, function, *args, **kwargs)` returns what the call returns."""


def live(x: object) -> TypeGuard[Tensor]:
    """Tell whether `x` carries relevance. Parameters never do: the context hands them over as constants."""
    return isinstance(x, Tensor) and x.requires_grad


class PlainFunction(Function):
    """An autograd function that is called many times in a pass."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Call it as torch does, past what torch looks up for functions of another make and for its transforms."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)  # type: ignore[no-untyped-call]
        return super(Function, cls).apply(*args)  # type: ignore[misc]


class ScaleGradient(PlainFunction):
    """The identity, with the gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None


def overwrite(target: Tensor, value: Tensor) -> Tensor:
    """Store `value` in `target`, for calls that work in place: what was there has no part in it any more."""
    return target.copy_(value)


def untouched(context: Propagation, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Read a call as it stands: linear in what is live, with nothing to book."""
    return function(*args, **kwargs)


def in_float32(x: Tensor) -> Tensor:
    """Return `x` in float32, or as it is in float64: sums and quotients in half precision are not to be trusted."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
