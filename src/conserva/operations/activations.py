"""Activations: elementwise nonlinear functions of one tensor, written as one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import gated
from .elementwise import (
    Activation,
    Call,
    Ratio,
    Trail,
    book_at_zero,
    follow,
    forget_trail,
    known_trail,
    source_of,
    squared,
)
from .live import live, overwrite
from .norms import statistic

if TYPE_CHECKING:
    from ..propagation import Propagation
    from .live import Reader

_NAMES = (
    "abs", "celu", "clamp", "clamp_max", "clamp_min", "clip", "cos", "elu", "erf", "exp", "expm1", "gelu",
    "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "log1p", "log_sigmoid", "mish",
    "reciprocal", "relu", "relu6", "selu", "sigmoid", "silu", "sin", "softplus", "softshrink", "softsign",
    "special_erf", "special_expit", "square", "tanh", "tanhshrink", "threshold", "__rpow__", "__rdiv__",
)  # fmt: skip


def activation(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read a call of one live tensor and otherwise plain numbers."""
    x = input
    if kwargs and kwargs.pop("inplace", False) and live(x):
        forget_trail(x)
        return overwrite(x, activation(context, function, x.clone(), *args, **kwargs))
    if not live(x) or (args and any(map(live, args))):
        return function(x, *args, **kwargs)
    rule = context.meet("activation", function)
    large = context.keeper is not None and context.keeper.is_large(x)
    if rule == "gradient" and not large and context.rules.product == "gradient":
        return function(x, *args, **kwargs)  # nothing to change, and no product that asks where its factors are from
    # Where a product gives each factor half, one function serves it and its gate: that is less even for small tensors.
    if large or (context.keeper is not None and context.rules.product == "half"):
        whole = _as_a_whole(context, function, x, args, kwargs)
        if whole is not None:
            return whole
    if rule == "gradient":
        out = function(x, *args, **kwargs)
        if context.rules.product == "freeze-gate":
            out.__dict__["conserva_trail"] = Trail(x, 0, linear=False)  # a product asks which factor is the gate
        return out
    if any(isinstance(arg, Tensor) for arg in (*args, *kwargs.values())):
        # Bounds that are tensors: no one f(0), f'(0) for all elements.
        with torch.no_grad():
            value = function(x, *args, **kwargs)
        return Ratio.apply(x, [value], 0.0, 0.0)
    return follow(context, function, x, *args, **kwargs)


def _as_a_whole(
    context: Propagation, function: Callable[..., Any], x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor | None:
    """Read a call, where that is the whole activation, so that it can be made again."""
    ratio = context.rules.activation == "ratio"
    if ratio and source_of(x) is not x:
        return None
    if (args or kwargs) and any(isinstance(arg, Tensor) for arg in (*args, *kwargs.values())):
        return None
    if ratio:
        number, whole = context.functions.whole(function, args, kwargs)
    else:
        number, whole = 0, Activation(Call(function, args, kwargs), False)
    out = gated.activate(context, x, whole)
    if out is None:
        out = function(x, *args, **kwargs)
    if whole.at_zero:
        book_at_zero(context, out, x, whole.at_zero)
    out.__dict__["conserva_trail"] = Trail(x, number, linear=False, whole=whole, made=out._version)
    return out


def activation_in_place(context: Propagation, function: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """Read `x.tanh_()` and its like: the same function, stored where its argument was."""
    if not live(x):
        return function(x, *args, **kwargs)
    forget_trail(x)
    return overwrite(x, activation(context, getattr(Tensor, function.__name__[:-1]), x.clone(), *args, **kwargs))


def power(context: Propagation, function: Callable[..., Any], input: Any, exponent: Any, **kwargs: Any) -> Any:
    """Read a power: a root is the scale of a norm written out, all else an activation."""
    if not isinstance(exponent, Tensor):
        if exponent in (0.5, -0.5):
            return statistic(context, function, input, exponent, **kwargs)
        if exponent == 2 and context.rules.activation == "ratio" and not kwargs:
            return square(context, function, input, exponent)
    return activation(context, function, input, exponent, **kwargs)


def square(context: Propagation, function: Callable[..., Any], input: Any, *exponent: float, **kwargs: Any) -> Any:
    """Read `square` and `pow(2)`."""
    plain = context.rules.activation == "ratio" and not kwargs and live(input) and known_trail(input) is None
    # Autocast makes powers in float32, and products not.
    plain = plain and not torch.is_autocast_enabled(input.device.type)
    if not plain or (context.keeper is not None and context.keeper.is_large(input)):
        return activation(context, function, input, *exponent, **kwargs)
    context.meet("activation", function)
    return squared(context, input)


READERS: dict[str, Reader] = {
    **dict.fromkeys(_NAMES, activation),
    **{f"{name}_": activation_in_place for name in _NAMES if hasattr(Tensor, f"{name}_")},
    "pow": power,
    "square": square,
    "pow_": activation_in_place,
}
