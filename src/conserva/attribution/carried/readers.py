"""The readers of torch calls for backward passes that propagate relevance. Calls without a reader are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...engine.operations import composites, lookup, reordering
from ...engine.operations.attention import written_out
from ...engine.operations.elementwise import Trail, drop_trail, set_trail, trail_of
from ...engine.operations.tensors import live, overwrite
from ...errors import NotApplicable
from ..attention_maps import PRODUCTS, factors_of
from .functions import Halved, Positive, SharedProduct, SharedSum, carry

if TYPE_CHECKING:
    from ...engine.operations.tensors import Reader
    from .carrier import Carrier


def _values(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return function(*args, **kwargs)


def _is_statistic(x: Tensor, beside: Tensor) -> bool:
    """Return whether `x` has one number for each position, such as a mean or a scale, and `beside` has several."""
    return x.dim() > 0 and x.shape[-1] == 1 < beside.shape[-1]


def _one_source(a: Any, b: Any) -> bool:
    """Return whether a call of `a` and `b` is an elementwise function of a single tensor."""
    if live(a) and live(b):
        return trail_of(a).source is trail_of(b).source
    return not isinstance(a if live(b) else b, Tensor)


def _step(context: Carrier, value: Tensor, *args: Any, linear: bool = False) -> Tensor:
    """Return the value of an elementwise function, with its relevance passed to the source of the function."""
    trails = [trail_of(arg) for arg in args if live(arg)]
    out = carry(trails[0].source, value)
    set_trail(context, out, Trail(trails[0].source, 0, linear and all(trail.linear for trail in trails)))
    return out


def _sum(context: Carrier, function: Callable[..., Any], input: Any, other: Any, **kwargs: Any) -> Any:
    a, b = input, other
    if not (live(a) or live(b)):
        return function(a, b, **kwargs)
    value = _values(function, a, b, **kwargs)
    if _one_source(a, b) and not all(trail_of(x).linear for x in (a, b) if live(x)):
        return _step(context, value, a, b)
    if live(a) and live(b) and not _is_statistic(b, a) and not _is_statistic(a, b):
        if "rsub" in function.__name__:
            a = carry(a, a.detach() * -kwargs.get("alpha", 1))
        elif "sub" in function.__name__ or "alpha" in kwargs:
            b = carry(b, b.detach() * kwargs.get("alpha", 1) * (-1 if "sub" in function.__name__ else 1))
        a, b = (x if x.shape == value.shape else x.expand(value.shape) for x in (a, b))
        return SharedSum.apply(a, b, [value], context.sample_axis(value))  # type: ignore[no-untyped-call]
    return carry(a if live(a) and not (live(b) and _is_statistic(a, b)) else b, value)


def _product(context: Carrier, function: Callable[..., Any], input: Any, other: Any) -> Any:
    a, b = input, other
    if not (live(a) or live(b)):
        return function(a, b)
    value = _values(function, a, b)
    if _one_source(a, b):
        return _step(context, value, a, b, linear=not (live(a) and live(b)))
    if live(a) and live(b) and not _is_statistic(b, a) and not _is_statistic(a, b):
        a, b = (x if x.shape == value.shape else x.expand(value.shape) for x in (a, b))
        return Halved.apply(a, b, [value])  # type: ignore[no-untyped-call]
    return carry(a if live(a) and not (live(b) and _is_statistic(a, b)) else b, value)


def _quotient(context: Carrier, function: Callable[..., Any], input: Any, other: Any, **kwargs: Any) -> Any:
    a, b = input, other
    if not (live(a) or live(b)):
        return function(a, b, **kwargs)
    value = _values(function, a, b, **kwargs)
    if _one_source(a, b):
        return _step(context, value, a, b, linear=not live(b))
    return carry(a, value) if live(a) else value  # a divisor is a scale


def _in_place(out_of_place: Callable[..., Any], read: Reader) -> Reader:
    def read_in_place(context: Carrier, function: Callable[..., Any], a: Any, other: Any, **kwargs: Any) -> Any:
        drop_trail(a)
        if not (live(a) or live(other)):
            return function(a, other, **kwargs)
        return overwrite(a, read(context, out_of_place, a.clone(), other, **kwargs))

    return read_in_place


def _passed(context: Carrier, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read a call that passes the relevance of each element on unchanged: a softmax, a norm."""
    if not live(input):
        return function(input, *args, **kwargs)
    return carry(input, _values(function, input, *args, **kwargs))


def _activation(context: Carrier, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    if not live(input):
        return function(input, *args, **kwargs)
    if kwargs.pop("inplace", False):
        return overwrite(input, _activation(context, function, input.clone(), *args, **kwargs))
    return _step(context, _values(function, input, *args, **kwargs), input)


def _power(context: Carrier, function: Callable[..., Any], input: Any, exponent: Any, **kwargs: Any) -> Any:
    read = _statistic if not isinstance(exponent, Tensor) and exponent in (0.5, -0.5) else _activation
    return read(context, function, input, exponent, **kwargs)


def _statistic(context: Carrier, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read the scale of a norm, which is a constant."""
    return function(context.frozen(input), *args, **kwargs)


def _pooled(context: Carrier, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read a sum or a mean: a linear layer with equal weights."""
    if not live(input):
        return function(input, *args, **kwargs)
    value = _values(function, input, *args, **kwargs)
    return Positive.apply(input, [value], lambda x, _: function(x, *args, **kwargs), None)  # type: ignore[no-untyped-call]


def _layer(call: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, weight: Tensor, value: Tensor) -> Any:
    return Positive.apply(x, [value], call, weight)  # type: ignore[no-untyped-call]


def _linear(
    context: Carrier, function: Callable[..., Any], input: Any, weight: Any, bias: Any = None, **how: Any
) -> Any:
    """Read `linear` and convolutions."""
    if live(weight):
        raise NotApplicable(
            f"chefer and partial-lrp have no rule for {function.__name__} with a weight that depends on the input. Use "
            "gi, ah+ln, exact or attnlrp."
        )
    if not live(input):
        return function(input, weight, bias, **how)
    value = _values(function, input, weight, bias, **how)
    return _layer(lambda x, w: function(x, w, None, **how), input, weight, value)


def _convolution(context: Carrier, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    return _linear(context, function, **{**dict(zip(names, args, strict=False)), **kwargs})


def _affine(
    context: Carrier,
    function: Callable[..., Any],
    input: Any,
    *factors: Any,
    beta: float = 1,
    alpha: float = 1,
    **named: Any,
) -> Any:
    """Read `addmm` and `baddbmm`: a product plus a live tensor, or plus a constant that gets no relevance."""
    a, b = (*factors, *named.values())
    product = _multiplied(torch.mm if function.__name__ == "addmm" else torch.bmm, a, b)
    if live(input):
        scaled = _product(context, torch.mul, product, alpha), _product(context, torch.mul, input, beta)
        return _sum(context, torch.add, *scaled)
    value = _values(function, input, a, b, beta=beta, alpha=alpha)
    return carry(product, value) if live(product) else value


def _multiplied(call: Callable[[Any, Any], Tensor], a: Any, b: Any) -> Any:
    """Return a matrix product: of live factors, which share the relevance, or a layer whose weight is a constant."""
    if live(a) and live(b):
        return SharedProduct.apply(a, b, call)  # type: ignore[no-untyped-call]
    if live(a):
        return _layer(call, a, b, _values(call, a, b))
    if live(b):
        return _layer(lambda y, x: call(x, y), b, a, _values(call, a, b))
    return call(a, b)


def _matrix_product(context: Carrier, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    product, context.products = context.products, context.products + 1
    factors = factors_of(function.__name__ == "einsum", args, kwargs)
    if factors is None:
        return refused(context, function, *args, **kwargs)
    (a, b), equation = factors
    a, b = context.constant(a), context.constant(b)
    if product in context.wanted:
        context.factors[product] = (a, b)
    return _multiplied(function if equation is None else partial(function, equation), a, b)


def moved(context: Carrier, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Read a call that only moves values: relevance is moved in the same way."""
    return function(*args, **kwargs)


def _moved_axes(context: Carrier, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    out = function(input, *args, **kwargs)
    if live(input) and input.dim() > 1 and not (input.shape[0] == out.shape[0] and input.stride(0) == out.stride(0)):
        context.samples_moved = True
    return out


def refused(context: Carrier, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Refuse a call that has no rule, if its result would carry relevance."""
    out = function(*args, **kwargs)
    if any(map(live, out if isinstance(out, (tuple, list)) else (out,))):
        raise NotApplicable(
            f"chefer and partial-lrp have no rule for {function.__name__}, which this model uses. Use gi, ah+ln, exact "
            "or attnlrp."
        )
    return out


_ACTIVATIONS = (
    "abs", "celu", "clamp", "clamp_max", "clamp_min", "clip", "elu", "erf", "exp", "gelu", "hardsigmoid", "hardswish",
    "hardtanh", "leaky_relu", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softplus", "softsign", "special_erf",
    "square", "tanh", "log", "log1p", "expm1", "reciprocal", "__rdiv__", "__rpow__", "sin", "cos", "log_sigmoid",
)  # fmt: skip

MOVING = frozenset(
    (
        "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "expand_as", "view_as",
        "reshape_as", "contiguous", "clone", "to", "type_as", "type", "float", "half", "bfloat16", "double", "cpu",
        "cuda", "chunk", "split", "tensor_split", "split_with_sizes", "unbind", "select", "narrow", "__getitem__",
        "index_select", "gather", "take_along_dim", "cat", "concat", "concatenate", "stack", "where", "masked_fill",
        "masked_fill_", "__setitem__", "repeat", "repeat_interleave", "roll", "flip", "pad", "unfold", "masked_select",
        "nan_to_num", "copy_", "broadcast_to", "ravel", "__iter__", "tril", "triu", "zero_", "fill_", "amax", "max",
    )
)  # fmt: skip
"""Calls that move or select values without changing them."""

_AXES = ("transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "t")

READERS: dict[str, Reader] = {
    **lookup.READERS,
    **composites.READERS,
    "dropout": reordering.dropout,
    **dict.fromkeys(_AXES, _moved_axes),
    **dict.fromkeys(("add", "__add__", "__radd__", "sub", "subtract", "__sub__", "rsub", "__rsub__"), _sum),
    **dict.fromkeys(("add_", "__iadd__"), _in_place(torch.add, _sum)),
    **dict.fromkeys(("sub_", "__isub__"), _in_place(torch.sub, _sum)),
    **dict.fromkeys(("mul", "multiply", "__mul__", "__rmul__"), _product),
    **dict.fromkeys(("mul_", "__imul__"), _in_place(torch.mul, _product)),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), _quotient),
    **dict.fromkeys(("div_", "__idiv__"), _in_place(torch.div, _quotient)),
    **dict.fromkeys(("neg", "negative", "softmax", "layer_norm", "rms_norm", "group_norm", "normalize"), _passed),
    "batch_norm": _passed,
    **dict.fromkeys(_ACTIVATIONS, _activation),
    "pow": _power,
    **dict.fromkeys(("sqrt", "rsqrt", "std", "var", "norm", "linalg_vector_norm", "linalg_norm"), _statistic),
    **dict.fromkeys(("sum", "mean"), _pooled),
    "linear": _linear,
    **{f"conv{n}d": _convolution for n in (1, 2, 3)},
    **dict.fromkeys(("addmm", "baddbmm"), _affine),
    **dict.fromkeys(PRODUCTS, _matrix_product),
    "scaled_dot_product_attention": written_out,
}
