"""Activations: elementwise nonlinear functions of one tensor, in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..autograd_graph import Provenance, edge_of
from . import gated
from .elementwise import (
    Activation,
    Call,
    Limits,
    Trail,
    computed_on_copy,
    follow,
    is_nonlinear,
    known_trail,
    record_value_at_zero,
    set_trail,
    source_of,
    squared,
)
from .patterns import is_softmax_of_logarithms
from .tensors import live

if TYPE_CHECKING:
    from ..context import Propagation
    from .tensors import Reader

_NAMES = (
    "abs", "absolute", "asinh", "atan", "arctan", "celu", "clamp", "clamp_max", "clamp_min", "clip", "cos", "cosh",
    "elu", "erf", "erfc", "expm1", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
    "leaky_relu", "log", "log10", "log1p", "log2", "log_sigmoid", "logit", "mish", "reciprocal", "relu",
    "relu6", "rsqrt", "selu", "sigmoid", "silu", "sin", "sinc", "sinh", "softplus", "softshrink", "softsign",
    "special_erf", "special_erfc", "special_expit", "special_expm1", "special_log1p", "sqrt", "square", "tan", "tanh",
    "tanhshrink", "threshold", "__rpow__", "__rdiv__",
)  # fmt: skip


def activation(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read an elementwise function of one live tensor."""
    x = input
    if kwargs and kwargs.pop("inplace", False) and live(x):
        return computed_on_copy(context, x, lambda copy: activation(context, function, copy, *args, **kwargs))
    if not live(x) or (args and any(map(live, args))):
        return function(x, *args, **kwargs)
    if context.rules.activation.follows and (scale := _scale(function, x, args)):
        out = function(x, *args, **kwargs)  # its rule is chosen where a tensor is multiplied or divided by it
        context.last_scale = edge_of(out), scale
        return out
    args = tuple([arg.item() if _is_number(arg) else arg for arg in args])
    rule = context.rule_for("activation", function)
    large = context.keeper is not None and context.keeper.is_large(x)
    if rule.differentiates and not large and context.rules.product.differentiates:
        return function(x, *args, **kwargs)  # no rule changes it, and the rule for products needs no trail
    # If a product gives each factor half, a fused function for it and its gate saves work even for small tensors.
    fused = large or (context.keeper is not None and context.rules.product.shares)
    if fused and context.frozen_factors is None and not (rule.freezes and _may_be_softmax(context, function)):
        whole = _whole_activation(context, function, x, args, kwargs)
        if whole is not None:
            return whole
    if rule.differentiates:
        out = function(x, *args, **kwargs)
        if context.rules.product.freezes_gate:
            set_trail(context, out, Trail(x, 0, linear=False))  # by which a product recognises its gate
        return out
    if any(isinstance(arg, Tensor) for arg in (*args, *kwargs.values())):
        # With bounds that are tensors, f(0) and f'(0) differ between elements: allowed only if f(0) is 0 for all.
        with torch.no_grad():
            value = function(x, *args, **kwargs)
            is_zero_at_zero = bool((function(torch.zeros_like(x), *args, **kwargs) == 0).all())
        return context.ratio(x, value, Limits(0.0, 0.0, is_zero_at_zero, function.__name__))
    return follow(context, function, x, *args, **kwargs)


def _is_number(x: Any) -> bool:
    return type(x) is Tensor and x.dim() == 0 and x.is_cpu and not x.requires_grad


_ROOTS = {"sqrt": "Sqrt", "rsqrt": "Rsqrt", "reciprocal": "Reciprocal", "__rdiv__": "Reciprocal"}
"""Call -> the name of its node in the graph."""
_POWERS = ("pow", "float_power")


def _scale(function: Callable[..., Any], x: Tensor, args: tuple[Any, ...]) -> Provenance | None:
    """Return how the result is computed if a root or a reciprocal is applied to a reduction, else None.

    It is then the scale of a norm, not an activation.
    """
    name = function.__name__
    exponent = args[0] if args and name in _POWERS else 1
    is_root = name in _ROOTS or (not isinstance(exponent, Tensor) and exponent < 1)
    if not is_root or is_nonlinear(x):
        return None
    node = _ROOTS.get(name, "Pow")
    made = Provenance(edge_of(x), node)
    return made if made.scaling == node else None


def _may_be_softmax(context: Propagation, function: Callable[..., Any]) -> bool:
    """Return whether this exponential may turn out to be part of a softmax that is differentiated."""
    return not context.rules.attention.freezes and function.__name__ in ("exp", "exp2")


def _whole_activation(
    context: Propagation, function: Callable[..., Any], x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor | None:
    """Read a call that is a whole activation, so that it can be recomputed; None if it is only a part of one."""
    is_followed = context.rules.activation.follows
    if is_followed and source_of(x) is not x:
        return None
    if (args or kwargs) and any(isinstance(arg, Tensor) for arg in (*args, *kwargs.values())):
        return None
    if is_followed:
        number, whole = context.functions.whole(function, args, kwargs)
    else:
        number, whole = 0, Activation(Call(function, args, kwargs), False)
    out = gated.activate(context, x, whole)
    if out is None:
        out = function(x, *args, **kwargs)
    if whole.at_zero:
        record_value_at_zero(context, out, x, whole.at_zero)
    set_trail(context, out, Trail(x, number, linear=False, whole=whole))
    return out


def activation_in_place(context: Propagation, function: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """Read `x.tanh_()` and other in-place activations."""
    if not live(x):
        return function(x, *args, **kwargs)
    plain = getattr(Tensor, function.__name__[:-1], None) or getattr(torch.nn.functional, function.__name__[:-1])
    read = READERS[function.__name__[:-1]]
    return computed_on_copy(context, x, lambda copy: read(context, plain, copy, *args, **kwargs))


def exponential(context: Propagation, function: Callable[..., Any], input: Any, **kwargs: Any) -> Any:
    """Read `exp`: a softmax if the logarithm of its denominator was subtracted before, else an activation."""
    if live(input) and is_softmax_of_logarithms(input):
        rule = context.rule_for("attention", function, "written out with logarithms")
        out = function(context.frozen(input) if rule.freezes else input, **kwargs)
        if live(out):
            context.met_written_softmax(out)
        return out
    return activation(context, function, input, **kwargs)


def power(context: Propagation, function: Callable[..., Any], input: Any, exponent: Any, **kwargs: Any) -> Any:
    """Read a power; the exponent is a number."""
    if isinstance(exponent, Tensor) and exponent.numel() == 1 and exponent.is_cpu and not live(exponent):
        exponent = exponent.item()
    if live(exponent):
        return function(input, exponent, **kwargs)
    if not isinstance(exponent, Tensor) and exponent == 2 and context.rules.activation.follows and not kwargs:
        return square(context, function, input, exponent)
    return activation(context, function, input, exponent, **kwargs)


def square(context: Propagation, function: Callable[..., Any], input: Any, *exponent: float, **kwargs: Any) -> Any:
    """Read `square` and `pow(2)`."""
    plain = context.rules.activation.follows and not kwargs and live(input) and known_trail(input) is None
    # Autocast computes powers in float32, but not products.
    plain = plain and not torch.is_autocast_enabled(input.device.type)
    if not plain or (context.keeper is not None and context.keeper.is_large(input)):
        return activation(context, function, input, *exponent, **kwargs)
    context.rule_for("activation", function)
    return squared(context, input)


READERS: dict[str, Reader] = {
    **dict.fromkeys(_NAMES, activation),
    **dict.fromkeys(("exp", "exp2", "special_exp2"), exponential),
    **dict.fromkeys(("pow", "float_power"), power),
    "square": square,
}
READERS |= {
    f"{name}_": activation_in_place
    for name in tuple(READERS)
    if hasattr(Tensor, f"{name}_") or hasattr(torch.nn.functional, f"{name}_")
}
