"""Elementwise functions of one tensor, written in any number of calls, as one activation.

`0.5 * x * (1 + tanh(c * (x + a * x**3)))` is eight calls and one GELU. Every tensor that is an elementwise function f
of one live tensor, its source x, has a `Trail` that refers to the source. The result of the next such call is connected
directly to the source in the graph, with the coefficient (f(x) - f(0)) / x, so that the calls in between do not take
part in the backward pass.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .tensors import PlainFunction, in_float32, live, overwrite

if TYPE_CHECKING:
    from ..context import Propagation


@dataclass(slots=True)
class Call:
    """One elementwise call that can be repeated on another tensor."""

    function: Callable[..., Tensor]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x, *self.args, **self.kwargs)


@dataclass(eq=False)
class Activation:
    """An elementwise function that can be recomputed, and the rule that it follows: `ratio` or its derivative."""

    again: Call
    ratio: bool
    at_zero: float = 0.0
    slope: float = 0.0
    is_finite: bool = True
    is_exponential: bool = False
    name: str = ""

    def back(self, grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of `x` by the rule, and f(x)."""
        if self.ratio:
            value = self.again(x)
            return coefficient(x, value, self.at_zero, self.slope).mul_(grad), value
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            value = self.again(x)
        return torch.autograd.grad(value, x, grad)[0], value.detach()

    @functools.cached_property
    def kind(self) -> str:
        """The name of the function in the GPU kernels; "" if they do not support it."""
        name, how = self.again.function.__name__, dict(zip(("approximate",), self.again.args, strict=False))
        how.update(self.again.kwargs)
        if name == "gelu" and set(how) <= {"approximate"}:
            return "gelu_tanh" if how.get("approximate") == "tanh" else "gelu"
        return name if name in ("silu", "relu") and not how else ""


class Trail:
    """The function by which a tensor was computed from its source.

    `function` is its number in `Functions`. `linear` is whether it only multiplies by a number or adds one. `whole` is
    the activation that computes the tensor from its source in one call, if there is one. A trail is valid until the
    tensor or its source is changed in place, which their version counters show.
    """

    # A trail is created for many calls of a model: a dataclass would take twice the time.
    __slots__ = ("function", "linear", "made", "source", "version", "whole")

    def __init__(self, source: Tensor, function: int, linear: bool, whole: Activation | None = None) -> None:
        self.source = source
        self.function = function
        self.linear = linear
        self.whole = whole
        self.version = source._version
        self.made = 0


IDENTITY = Trail(torch.empty(0), 0, linear=True)
"""The trail of any tensor that is its own source, where only the function matters."""


class _Point(NamedTuple):
    """The value of an argument at which a call is evaluated."""

    value: float


@functools.lru_cache(maxsize=1024)  # a model has few functions, the same in every pass
def _value_and_slopes(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]
) -> tuple[float, tuple[float, ...]]:
    """Return the value of a call, with a `_Point` for each tensor argument, and its partial derivatives there."""
    points = [torch.tensor(arg.value, dtype=torch.float64, requires_grad=True) for arg in args if type(arg) is _Point]
    waiting = iter(points)
    # Hooks on saved tensors are replaced, so that a checkpoint around the model does not count these as its own.
    with torch.enable_grad(), saved_tensors_hooks(lambda x: x, lambda x: x):
        out = call(*(next(waiting) if type(arg) is _Point else arg for arg in args), **dict(kwargs))
        slopes = torch.autograd.grad(out, points)
    return out.item(), tuple(map(float, slopes))


class Limits(NamedTuple):
    """An elementwise function f at 0: f(0) and f'(0), which the rule `ratio` needs."""

    at_zero: float
    slope: float
    is_finite: bool = True
    """Whether f(0) is finite; if not, `at_zero` is 0, and the function is refused."""
    name: str = ""
    is_exponential: bool = False
    """Whether f(x) is c exp(k x)."""


_EXPONENTIALS = ("exp", "exp2", "special_exp2", "__rpow__")
_FACTORS = ("mul", "multiply", "__mul__", "__rmul__", "div", "divide", "true_divide", "__truediv__")
_PLAIN = (*_FACTORS, "add", "__add__", "__radd__", "sub", "subtract", "__sub__", "rsub", "__rsub__", "neg", "negative")


_SCALING = ("sqrt", "rsqrt", "reciprocal", "pow", "__rdiv__", "truediv")
_BOUNDING = ("abs", "clamp", "clamp_min", "clamp_max", "clip", "square")


def _composed(name: str, before: str, args: tuple[Any, ...]) -> str:
    """Return the name of a composition of functions: that of the last one that is not a sum or a product.

    A power of a power is a power, also with bounds in between, and so is exp of a logarithm; others are `mixed`.
    """
    if name in _PLAIN:
        return before
    if name in ("pow", "float_power"):
        name = "square" if len(args) > 1 and isinstance(args[1], (int, float)) and args[1] >= 1 else "pow"
    if not before:
        return name
    if name in _EXPONENTIALS and before.startswith("log"):
        return "pow"
    is_pure = before in _SCALING or before in _BOUNDING
    return name if is_pure and (name in _SCALING or name in _BOUNDING or name.startswith("log")) else "mixed"


class Functions:
    """The elementwise functions of a forward pass, identified by the calls they consist of, with f(0) and f'(0)."""

    def __init__(self) -> None:
        self._limits = [(0.0, 1.0)]  # the first function is the identity
        self._names = [""]
        self._exponential = {0: False}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._wholes: dict[int, Activation] = {}

    def number(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the number of the function that a call computes from others, given by their trails in `args`."""
        known = tuple([("f", arg.function) if type(arg) is Trail else arg for arg in args])
        key = (call, known, tuple(sorted(kwargs.items())) if kwargs else ())
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._limits)
            self._limits.append(self._limit(call, args, kwargs))
            name = getattr(call, "__name__", "")
            inner = [arg for arg in args if type(arg) is Trail]
            before = next((self._names[arg.function] for arg in inner if self._names[arg.function]), "")
            self._names.append(_composed(name, before, args))
            self._exponential[number] = (name in _EXPONENTIALS and all(arg.linear for arg in inner)) or (
                name in _FACTORS and len(inner) == 1 and self._exponential[inner[0].function]
            )
        return number

    def _limit(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, float]:
        """Return f(0) and f'(0): the call evaluated at the values of its arguments at 0, and the chain rule."""
        inner = [self._limits[arg.function] for arg in args if isinstance(arg, Trail)]
        given = tuple(_Point(self._limits[arg.function][0]) if isinstance(arg, Trail) else arg for arg in args)
        value, slopes = _value_and_slopes(call, given, tuple(kwargs.items()))
        return value, sum(outer * here for outer, (_, here) in zip(slopes, inner, strict=True))

    def limit(self, number: int) -> Limits:
        """Return f(0) and f'(0) of a function, with 0 for values that are not finite."""
        value, slope = self._limits[number]
        name, exponential = self._names[number], self._exponential[number]
        if not math.isfinite(value):
            return Limits(0.0, 0.0, False, name, exponential)
        return Limits(value, slope if math.isfinite(slope) else 0.0, True, name, exponential)

    def whole(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, Activation]:
        """Return the number of an activation that is a single call, and the activation."""
        number = self.number(call, (IDENTITY, *args), kwargs)
        if number not in self._wholes:
            limits = self.limit(number)
            again = Call(call, args, kwargs)
            self._wholes[number] = Activation(
                again, True, limits.at_zero, limits.slope, limits.is_finite, limits.is_exponential, limits.name
            )
        return number, self._wholes[number]


def set_trail(context: Propagation, x: Tensor, trail: Trail) -> None:
    """Set the trail of a tensor."""
    trail.made = x._version
    context.attributes.set(x, "conserva_trail", trail)


def known_trail(x: Tensor) -> Trail | None:
    """Return the trail of `x` if it has one and it is still valid."""
    trail: Trail | None = getattr(x, "conserva_trail", None)  # does not create a __dict__, unlike x.__dict__
    if trail is None or trail.source._version != trail.version or trail.made != x._version:
        return None
    return trail


def trail_of(x: Tensor) -> Trail:
    """Return the trail of `x`; a tensor without one is its own source."""
    return known_trail(x) or Trail(x, 0, True)


def source_of(x: Tensor) -> Tensor:
    """Return the source of `x`, which may be `x` itself."""
    trail = known_trail(x)
    return x if trail is None else trail.source


def share_source(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are elementwise functions of the same tensor, or of views of the same elements."""
    a, b = source_of(a), source_of(b)
    if a is b:
        return True
    return (
        a.shape == b.shape
        and a.layout == b.layout == torch.strided
        and a.data_ptr() == b.data_ptr()
        and a.dtype == b.dtype
        and a._version == b._version
        and a.stride() == b.stride()
        and a.device == b.device
        and a.is_conj() == b.is_conj()
        and a.numel() > 0
    )


def is_nonlinear(x: object) -> bool:
    """Return whether `x` is a nonlinear function of its source."""
    trail = known_trail(x) if isinstance(x, Tensor) else None
    return trail is not None and not trail.linear


def drop_trail(x: object) -> None:
    """Remove the trail of a tensor that is changed in place, or that later calls must not bypass."""
    if isinstance(x, Tensor):
        x.__dict__.pop("conserva_trail", None)
        x.__dict__.pop("conserva_linear_origin", None)


def computed_on_copy(context: Propagation, x: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    """Make an in-place call on a copy, and store the result, with its trail, in `x`.

    Parameters
    ----------
    context
        The context of the forward pass.
    x
        The tensor that the call changes in place.
    make
        The out-of-place call, as a function of the copy.
    """
    before = x.clone()  # the value of `x` before it is overwritten
    copy = before.view_as(before)
    set_trail(context, copy, known_trail(x) or Trail(x, 0, True))
    out = make(copy)
    trail = known_trail(out)
    drop_trail(x)
    if not live(out) and not x._is_view():
        x.detach_()  # it is a constant from now on
    overwrite(x, out)
    if trail is not None and trail.source is not copy:
        source = before if trail.source is x else trail.source
        set_trail(context, x, Trail(source, trail.function, trail.linear))
    return x


def coefficient(source: Tensor, value: Tensor, at_zero: float, slope: float) -> Tensor:
    """Return (f(x) - f(0)) / x, with the limit f'(0) at 0."""
    if not at_zero:
        # 0 / 0 is nan. It takes a fraction of the time of a comparison and a masked fill, and torch divides half types
        # in float32 and rounds once.
        return (value / source).nan_to_num_(slope, math.inf, -math.inf)
    # f(x) - f(0) cancels near 0: below sqrt(eps) the limit is more accurate.
    x, y = in_float32(source), in_float32(value)
    ratio = ((y - at_zero) / x).masked_fill_(x.abs() < torch.finfo(x.dtype).eps ** 0.5, slope)
    return ratio.to(source.dtype)


class Ratio(PlainFunction):
    """The value f(x), with the gradient of x times the constant (f(x) - f(0)) / x, or its limit f'(0) at 0."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, value: list[Tensor], limits: Limits, keep_value: bool) -> Tensor:
        ctx.limits, ctx.elementwise, ctx.exponential = limits, limits.name or "function", limits.is_exponential
        ctx.is_differentiated = False  # set if an exponential turns out to be part of a softmax
        values = (value[0].clone(),) if keep_value and limits.is_exponential else ()
        ctx.save_for_backward(coefficient(source, value[0], limits.at_zero, limits.slope), *values)
        return value[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        ratio, *value = ctx.saved_tensors
        if ctx.is_differentiated:  # c exp(k x) has the derivative k f(x)
            ratio = value[0] * (ctx.limits.slope / ctx.limits.at_zero)
        return grads[0] * ratio, None, None, None


def follow(context: Propagation, call: Callable[..., Any], *args: Any, linear: bool = False, **kwargs: Any) -> Tensor:
    """Make an elementwise call whose live arguments share one source and whose other arguments are numbers."""
    source = next(source_of(arg) for arg in args if live(arg))
    trails = tuple([(known_trail(arg) or IDENTITY) if live(arg) else arg for arg in args])
    number = context.functions.number(call, trails, kwargs)
    if linear and not any(map(is_nonlinear, args)):
        out: Tensor = call(*args, **kwargs)
    else:
        linear = False
        with torch.no_grad():
            value = call(*args, **kwargs)
        limits = context.functions.limit(number)
        out = context.ratio(source, value, limits)
        record_value_at_zero(context, out, source, limits.at_zero)
    set_trail(context, out, Trail(source, number, linear))
    return out


def squared(context: Propagation, x: Tensor) -> Tensor:
    """Return x**2 of a tensor that is its own source, as `x * x.detach()`: the coefficient (x**2 - 0) / x is x.

    This is the first step of every RMSNorm that is written out, so it must be cheap.
    """
    out: Tensor = x * context.frozen(x)
    number, whole = context.functions.whole(torch.square, (), {})
    set_trail(context, out, Trail(x, number, linear=False, whole=whole))
    return out


def record_value_at_zero(context: Propagation, out: Tensor, source: Tensor, at_zero: float) -> None:
    """Record f(0) in the ledger: a summand of an activation f(x) that its ratio does not cover."""
    if at_zero and context.constants is not None:
        finite = torch.isfinite(source.detach())  # exp(-inf) of a mask is 0 and does not contain exp(0)
        context.record_constant(out, at_zero, where=finite)
