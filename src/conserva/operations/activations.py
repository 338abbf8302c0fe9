"""Activations: elementwise nonlinear functions of one tensor, written as one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import gated
from .elementwise import Call, Ratio, Trail, book_at_zero, follow, forget_trail, trail_of
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
    if kwargs.pop("inplace", False) and live(x):
        forget_trail(x)
        return overwrite(x, activation(context, function, x.clone(), *args, **kwargs))
    if not live(x) or any(map(live, args)):
        return function(x, *args, **kwargs)
    rule = context.meet("activation", function)
    # Where a product gives each factor half, one function serves it and its gate: that is less even for small tensors.
    if context.keeper is not None and (context.rules.product == "half" or context.keeper.is_large(x)):
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
        return Ratio.apply(x, [value], 0.0, 0.0)  # type: ignore[no-untyped-call]
    return follow(context, function, x, *args, **kwargs)


def _as_a_whole(
    context: Propagation, function: Callable[..., Any], x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor | None:
    """Read a call, where that is the whole activation, so that it can be made again."""
    ratio = context.rules.activation == "ratio"
    if any(isinstance(arg, Tensor) for arg in (*args, *kwargs.values())) or (ratio and trail_of(x).source is not x):
        return None
    again = Call(function, args, kwargs)
    number = context.functions.number(function, (Trail(x, 0, linear=True), *args), kwargs) if ratio else 0
    at_zero, slope = context.functions.limit(number)
    out = gated.activate(context, x, gated.Activation(again, ratio, at_zero, slope))
    if out is None:
        out = again(x)
    if ratio:
        book_at_zero(context, out, x, at_zero)
    out.__dict__["conserva_trail"] = Trail(x, number, linear=False, again=again, made=out._version)
    return out


def activation_in_place(context: Propagation, function: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """Read `x.tanh_()` and its like: the same function, stored where its argument was."""
    if not live(x):
        return function(x, *args, **kwargs)
    forget_trail(x)
    return overwrite(x, activation(context, getattr(Tensor, function.__name__[:-1]), x.clone(), *args, **kwargs))


def power(context: Propagation, function: Callable[..., Any], input: Any, exponent: Any, **kwargs: Any) -> Any:
    """Read a power: a root is the scale of a norm written out, all else an activation."""
    if not isinstance(exponent, Tensor) and exponent in (0.5, -0.5):
        return statistic(context, function, input, exponent, **kwargs)
    return activation(context, function, input, exponent, **kwargs)


READERS: dict[str, Reader] = {
    **dict.fromkeys(_NAMES, activation),
    **{f"{name}_": activation_in_place for name in _NAMES if hasattr(Tensor, f"{name}_")},
    "pow": power,
    "pow_": activation_in_place,
}
