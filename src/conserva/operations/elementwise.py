"""Elementwise functions of one tensor, however many calls they are written in, read as one activation.

`0.5 * x * (1 + tanh(c * (x + a * x**3)))` is eight calls and one GELU. Every tensor that is an elementwise function
f of one live tensor, its source x, carries a `Trail` back to it. The next such call is linked straight to the source,
with the coefficient (f(x) - f(0)) / x: what lies between drops out of the backward pass by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks

from .live import in_float32, live

if TYPE_CHECKING:
    from ..propagation import Propagation


@dataclass(slots=True)
class Call:
    """One elementwise call, to be made again of its tensor."""

    function: Callable[..., Tensor]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x, *self.args, **self.kwargs)


class Trail:
    """How a tensor came from its source: by which function, and whether that is a mere factor.

    `again` is the one call that makes the tensor of its source, where it is one, and `made` the version of the tensor
    as it was made: changed in place since, it cannot be made again.
    """

    # Trails are made for many calls of a model, so they are as plain as can be: a dataclass takes twice the time.
    __slots__ = ("again", "function", "linear", "made", "source", "version")

    def __init__(self, source: Tensor, function: int, linear: bool, again: Call | None = None, made: int = 0) -> None:
        self.source = source
        self.function = function
        self.linear = linear
        self.again = again
        self.made = made
        # What tells a source that was changed in place since: it is no longer what the tensor came from.
        self.version = source._version


class Functions:
    """The elementwise functions met, each known by the calls it is made of, with f(0) and f'(0)."""

    def __init__(self) -> None:
        self._limits = [(0.0, 1.0)]  # the first function is the identity
        self._numbers: dict[tuple[Any, ...], int] = {}

    def number(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the number of the function that `call` makes of others, which stand as trails in `args`."""
        key = (call, *[("f", arg.function) if type(arg) is Trail else arg for arg in args])
        if kwargs:
            key = (*key, *sorted(kwargs.items()))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._limits)
            self._limits.append(self._limit(call, args, kwargs))
        return number

    def _limit(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, float]:
        """Make the call on what the functions in `args` are at 0, and follow the chain rule."""
        inner = [self._limits[arg.function] for arg in args if isinstance(arg, Trail)]
        points = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value, _ in inner]
        waiting = iter(points)
        # A checkpoint around the model must not take these few numbers for its own: its hooks are covered up.
        with torch.enable_grad(), saved_tensors_hooks(lambda x: x, lambda x: x):
            out = call(*(next(waiting) if isinstance(arg, Trail) else arg for arg in args), **kwargs)
            slopes = torch.autograd.grad(out, points)
        slope = sum(float(outer) * here for outer, (_, here) in zip(slopes, inner, strict=True))
        return out.item(), slope

    def limit(self, number: int) -> tuple[float, float]:
        """Return f(0) and f'(0), and 0 for what is not finite."""
        value, slope = self._limits[number]
        if not math.isfinite(value):
            return 0.0, 0.0
        return value, slope if math.isfinite(slope) else 0.0


def known_trail(x: Tensor) -> Trail | None:
    """Return where `x` comes from, if that is another tensor."""
    trail: Trail | None = x.__dict__.get("conserva_trail")
    return None if trail is None or trail.source._version != trail.version else trail


def trail_of(x: Tensor) -> Trail:
    """Return where `x` comes from; a tensor without a trail is its own source."""
    return known_trail(x) or Trail(x, 0, True)


def source_of(x: Tensor) -> Tensor:
    """Return what `x` comes from, or itself."""
    trail = known_trail(x)
    return x if trail is None else trail.source


def is_curved(x: object) -> bool:
    """Tell whether `x` is more than a factor of its source: a tensor without a trail is not."""
    trail = known_trail(x) if isinstance(x, Tensor) else None
    return trail is not None and not trail.linear


def forget_trail(x: object) -> None:
    """Drop the trail of a tensor that changes in place, or that nothing may pass by."""
    if isinstance(x, Tensor):
        x.__dict__.pop("conserva_trail", None)
        x.__dict__.pop("conserva_origin", None)


def coefficient(source: Tensor, value: Tensor, at_zero: float, slope: float) -> Tensor:
    """Return (f(x) - f(0)) / x, with the limit f'(0) at 0."""
    if not at_zero:
        return (value / source).masked_fill_(source == 0, slope)  # half types are divided in float32 and rounded once
    # f(x) - f(0) cancels near 0: below sqrt(eps) the limit is the better value, off by rounding only.
    x, y = in_float32(source), in_float32(value)
    ratio = ((y - at_zero) / x).masked_fill_(x.abs() < torch.finfo(x.dtype).eps ** 0.5, slope)
    return ratio.to(source.dtype)


class Ratio(Function):
    """The value f(x), read as x times the constant (f(x) - f(0)) / x, with the limit f'(0) at 0."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, value: list[Tensor], at_zero: float, slope: float) -> Tensor:
        ctx.save_for_backward(coefficient(source, value[0], at_zero, slope))
        return value[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (ratio,) = ctx.saved_tensors
        return grads[0] * ratio, None, None, None


def follow(context: Propagation, call: Callable[..., Any], *args: Any, linear: bool = False, **kwargs: Any) -> Tensor:
    """Make an elementwise call whose live arguments share one source and whose others are plain numbers."""
    trails = tuple([trail_of(arg) if live(arg) else arg for arg in args])
    source = next(trail.source for trail in trails if type(trail) is Trail)
    number = context.functions.number(call, trails, kwargs)
    if linear and not any(map(is_curved, args)):
        out: Tensor = call(*args, **kwargs)
    else:
        linear = False
        with torch.no_grad():
            value = call(*args, **kwargs)
        at_zero, slope = context.functions.limit(number)
        out = Ratio.apply(source, [value], at_zero, slope)  # type: ignore[no-untyped-call]
        book_at_zero(context, out, source, at_zero)
    out.__dict__["conserva_trail"] = Trail(source, number, linear)
    return out


def book_at_zero(context: Propagation, out: Tensor, source: Tensor, at_zero: float) -> None:
    """Book f(0), which the value f(x) of an activation contains and the ratio leaves out."""
    if at_zero and context.books is not None:
        finite = torch.isfinite(source.detach())  # exp(-inf) of a mask is 0, not exp(0) and something else
        context.book(out, at_zero, where=finite)
