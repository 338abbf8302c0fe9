"""Sums, products and quotients of tensors and numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import gated, patterns, residual
from .elementwise import (
    IDENTITY,
    Trail,
    computed_on_copy,
    follow,
    is_nonlinear,
    known_trail,
    set_trail,
    share_source,
    source_of,
    squared,
)
from .tensors import live

if TYPE_CHECKING:
    from ..context import Propagation
    from .tensors import Reader


def _as_numbers(
    context: Propagation, function: Callable[..., Any], a: Any, b: Any, plain: Callable[..., Any]
) -> tuple[Callable[..., Any], Any, Any]:
    """Return a call with a zero-dimensional CPU constant replaced by its value, so that functions can be followed."""
    if context.rules.activation.follows:
        if live(a) and _is_number(b):
            return function, a, b.item()
        if live(b) and _is_number(a) and plain is not torch.rsub:
            return plain, a.item(), b  # torch functions do not take a number as their first argument
    return function, a, b


def _is_number(x: Any) -> bool:
    return type(x) is Tensor and x.dim() == 0 and x.is_cpu and x.is_floating_point() and not x.requires_grad


def _is_elementwise(a: Any, b: Any) -> bool:
    """Return whether a quotient of `a` and `b` is an elementwise function of a single tensor."""
    if live(a) and live(b):
        return share_source(a, b)
    return (live(a) and not isinstance(b, Tensor)) or (live(b) and not isinstance(a, Tensor))


def _sum(sign_a: int, sign_b: int) -> Reader:
    """Return the reader of `sign_a * input + sign_b * other`."""
    plain = operator.add if sign_a == sign_b else operator.sub if sign_b < 0 else torch.rsub

    def read(context: Propagation, function: Callable[..., Any], input: Any, other: Any, *, alpha: float = 1) -> Any:
        a, b, follows = input, other, context.rules.activation.follows
        how: dict[str, Any] = {} if alpha == 1 else {"alpha": alpha}
        if live(a) == live(b):
            if not live(a) or not follows or not share_source(a, b):
                if live(a) and sign_a == sign_b == alpha and context.finds_residual_sums:
                    return residual.add(context, function, a, b)
                return function(a, b, **how)
            return _step(context, function, a, b, how)
        function, a, b = _as_numbers(context, function, a, b, plain)
        is_number = follows and not isinstance(b if live(a) else a, Tensor)
        if is_number and (is_nonlinear(a) or is_nonlinear(b)):
            return follow(context, function, a, b, **how)
        out = function(a, b, **how)
        if context.constants is not None or context.has_detached:
            by_a, by_b = (sign_a, sign_b * alpha) if sign_a > 0 else (sign_a * alpha, sign_b)
            constant, factor = (b, by_b) if live(a) else (a, by_a)
            # A plain number is part of an activation, whose f(0) is recorded if activations follow the rule `ratio`.
            if follows or isinstance(constant, Tensor):
                context.record_constant(out, constant, factor=factor)
        return _with_step(context, function, out, a, b, how) if is_number else out

    return read


def _step(context: Propagation, function: Callable[..., Any], a: Tensor, b: Tensor, how: dict[str, Any]) -> Any:
    """Add two elementwise functions of the same tensor, which is an elementwise function of it."""
    if is_nonlinear(a) or is_nonlinear(b):
        return follow(context, function, a, b, **how)
    return _with_step(context, function, function(a, b, **how), a, b, how)


def _with_step(
    context: Propagation, function: Callable[..., Any], out: Any, a: Any, b: Any, how: dict[str, Any]
) -> Any:
    """Return a sum with its trail: it may be the first step of a function such as x * relu6(x + 3) / 6."""
    if live(out):
        trails = tuple([(known_trail(x) or IDENTITY) if live(x) else x for x in (a, b)])
        step = Trail(source_of(a if live(a) else b), context.functions.number(function, trails, how), linear=True)
        set_trail(context, out, step)
    return out


def _sum_in_place(out_of_place: Callable[..., Any], read: Reader) -> Reader:
    """Return the reader of an in-place sum. With a constant it is computed on a copy, which the ledger can record."""

    def read_in_place(context: Propagation, function: Callable[..., Any], a: Any, other: Any, **kwargs: Any) -> Any:
        b = other
        is_recorded = context.constants is not None and live(a) != live(b)
        is_residual = context.finds_residual_sums and live(a) and live(b)
        if is_recorded or is_residual or is_nonlinear(a) or is_nonlinear(b):
            return computed_on_copy(context, a, lambda copy: read(context, out_of_place, copy, b, **kwargs))
        return function(a, b, **kwargs)

    return read_in_place


def multiply(context: Propagation, function: Callable[..., Any], input: Any, other: Any) -> Any:
    """Read `a * b`."""
    a, b, follows = input, other, context.rules.activation.follows
    if live(a) != live(b):
        function, a, b = _as_numbers(context, function, a, b, operator.mul)
        is_number = follows and not isinstance(b if live(a) else a, Tensor)
        return follow(context, function, a, b, linear=True) if is_number else function(a, b)
    if not live(a):
        return function(a, b)
    if follows and share_source(a, b):
        return squared(context, a) if a is b and known_trail(a) is None else follow(context, function, a, b)
    normed = patterns.read_product(context, function, a, b)
    if normed is not None:
        return normed
    if context.keeper is not None and (context.rules.product.shares or context.keeper.is_large(a)):
        product = gated.gate(context, function, a, b)
        if product is not None:
            return product
    return function(*shared(context, function, a, b))


def shared(context: Propagation, function: Callable[..., Any], *factors: Any) -> list[Any]:
    """Return the factors of a product, frozen or with their gradient scaled as the rule for products says."""
    rule = context.rule_for("product", function)
    if rule.differentiates:
        return list(factors)
    if rule.freezes_gate:
        gates = [live(factor) and is_nonlinear(factor) for factor in factors]
        if any(gates) and not all(gates):
            return [context.frozen(factor) if gate else factor for factor, gate in zip(factors, gates, strict=True)]
    share = 1 / sum(map(live, factors))
    return [context.share(factor, share) for factor in factors]


def divide(context: Propagation, function: Callable[..., Any], input: Any, other: Any, **kwargs: Any) -> Any:
    """Read `a / b`. Unless products are differentiated, the divisor is a constant, like the scale of a norm."""
    function, a, b = _as_numbers(context, function, input, other, operator.truediv)
    if not kwargs and context.rules.activation.follows and _is_elementwise(a, b):
        return follow(context, function, a, b, linear=not live(b))
    if live(b):
        normed = patterns.read_quotient(context, function, a, b, **kwargs)
        if normed is not None:
            return normed
        if not context.rule_for("product", function).differentiates:
            b = context.frozen(b)
    return function(a, b, **kwargs)


def negate(context: Propagation, function: Callable[..., Any], input: Any) -> Any:
    """Read `-x`."""
    if not context.rules.activation.follows or not live(input):
        return function(input)
    trail = known_trail(input)
    if trail is not None:
        return follow(context, function, input, linear=True)
    out = function(input)  # rotary embeddings do this twice in each layer
    set_trail(context, out, Trail(input, context.functions.number(function, (IDENTITY,), {}), linear=True))
    return out


def _product_in_place(out_of_place: Callable[..., Any], read: Reader) -> Reader:
    """Return the reader of an in-place product or quotient."""

    def read_in_place(context: Propagation, function: Callable[..., Any], a: Any, other: Any, **kwargs: Any) -> Any:
        b = other
        if (live(a) and live(b)) or is_nonlinear(a) or is_nonlinear(b):
            return computed_on_copy(context, a, lambda copy: read(context, out_of_place, copy, b, **kwargs))
        return function(a, b, **kwargs)

    return read_in_place


READERS: dict[str, Reader] = {
    **dict.fromkeys(("add", "__add__", "__radd__"), _sum(1, 1)),
    **dict.fromkeys(("sub", "subtract", "__sub__"), _sum(1, -1)),
    **dict.fromkeys(("rsub", "__rsub__"), _sum(-1, 1)),
    **dict.fromkeys(("add_", "__iadd__"), _sum_in_place(torch.add, _sum(1, 1))),
    **dict.fromkeys(("sub_", "subtract_", "__isub__"), _sum_in_place(torch.sub, _sum(1, -1))),
    **dict.fromkeys(("mul", "multiply", "__mul__", "__rmul__"), multiply),
    **dict.fromkeys(("mul_", "multiply_", "__imul__"), _product_in_place(torch.mul, multiply)),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), divide),
    **dict.fromkeys(("div_", "divide_", "true_divide_", "__idiv__"), _product_in_place(torch.div, divide)),
    **dict.fromkeys(("neg", "negative"), negate),
}
