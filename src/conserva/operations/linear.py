"""Linear layers, convolutions and matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from .arithmetic import shared
from .live import in_float32, live, scale_gradient

if TYPE_CHECKING:
    from ..propagation import Propagation
    from .live import Reader

    Affine = Callable[[Tensor, Tensor, Any], Tensor]


class Stabilised(Function):
    """The value z, with the gradient times z / (z' + epsilon sign z'), where z' is what the relevance is shared by."""

    @staticmethod
    def forward(ctx: Any, shared_by: Tensor, value: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(shared_by, value)
        ctx.epsilon = epsilon
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        divisor, value = (in_float32(saved) for saved in ctx.saved_tensors)
        divisor = divisor + torch.where(divisor < 0, -ctx.epsilon, ctx.epsilon)
        return (grads[0] * (value / divisor)).to(grads[0].dtype), None, None


def _zero(context: Propagation, affine: Affine, x: Tensor, weight: Tensor, bias: Any) -> tuple[Tensor, Any, Tensor]:
    out = affine(x, weight, bias)
    return out, bias, out


def _epsilon(context: Propagation, affine: Affine, x: Tensor, weight: Tensor, bias: Any) -> tuple[Tensor, Any, Tensor]:
    value = affine(x, weight, bias)
    return value, bias, Stabilised.apply(value, value.detach(), context.rules.epsilon)  # type: ignore[no-untyped-call]


def _gamma(context: Propagation, affine: Affine, x: Tensor, weight: Tensor, bias: Any) -> tuple[Tensor, Any, Tensor]:
    gamma = context.rules.gamma
    with torch.no_grad():
        value = affine(x, weight, bias)
        weight = weight + gamma * weight.clamp(min=0)
        bias = None if bias is None else bias + gamma * bias.clamp(min=0)
    raised = affine(x, weight, bias)
    return raised, bias, Stabilised.apply(raised, value, context.rules.epsilon)  # type: ignore[no-untyped-call]


RULES: dict[str, Callable[..., tuple[Tensor, Any, Tensor]]] = {"zero": _zero, "epsilon": _epsilon, "gamma": _gamma}
"""Rule -> what it makes of a layer: the tensor and the bias that are booked, and the output."""


def layer(
    context: Propagation,
    function: Callable[..., Any],
    affine: Affine,
    x: Any,
    weight: Any,
    bias: Any,
    trailing: int = 0,
    factor: float = 1,
) -> Any:
    """Read a linear layer, `affine(x, weight, bias)`; `trailing` axes of its output follow the one of the bias."""
    if live(weight):
        x, weight = shared(context, function, x, weight)
        out = affine(x, weight, bias)
        context.book(out, _along(bias, trailing), factor=factor, of=bias)
        return out
    if not live(x):
        out = affine(x, weight, bias)
        if live(bias):  # constants join a live sum
            context.book(out, affine(x, weight, torch.zeros_like(bias)))
        return out
    booked, bias_used, out = RULES[context.meet("linear", function)](context, affine, x, weight, bias)
    if not live(bias):
        context.book(booked, _along(bias_used, trailing), factor=factor, of=bias)
    return out


def _along(bias: Any, trailing: int) -> Any:
    return bias.reshape(-1, *[1] * trailing) if isinstance(bias, Tensor) and trailing else bias


def linear(context: Propagation, function: Callable[..., Any], input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002
    """Read `linear`."""
    return layer(context, function, function, input, weight, bias)


def convolution(
    context: Propagation,
    function: Callable[..., Any],
    input: Any,  # noqa: A002
    weight: Any,
    bias: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Read `conv1d` and its like."""

    def affine(x: Tensor, weight: Tensor, bias: Any) -> Tensor:
        return function(x, weight, bias, *args, **kwargs)  # type: ignore[no-any-return]

    return layer(context, function, affine, input, weight, bias, trailing=weight.dim() - 2)


def add_matrix_product(
    context: Propagation,
    function: Callable[..., Any],
    input: Any,  # noqa: A002
    a: Any,
    b: Any,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Any:
    """Read `addmm` and `baddbmm`, `beta * input + alpha * a @ b`: a linear layer with either factor as its weight."""

    def affine(x: Tensor, weight: Tensor, bias: Any) -> Tensor:
        factors = (weight, x) if live(b) and not live(a) else (x, weight)
        return function(bias, *factors, beta=beta, alpha=alpha)  # type: ignore[no-any-return]

    x, weight = (b, a) if live(b) and not live(a) else (a, b)
    return layer(context, function, affine, x, weight, input, factor=beta)


def matrix_product(context: Propagation, function: Callable[..., Any], a: Any, b: Any) -> Any:
    """Read `a @ b`: a product of an attention head, a product of other live tensors, or a linear layer by hand."""
    if live(a) and live(b):
        return function(*_head_or_product(context, function, a, b))
    for x, weight in ((a, b), (b, a)):
        if live(x) and context.rules.linear != "zero" and context.parameter_of(weight) is not None:

            def affine(x: Tensor, weight: Tensor, bias: None, reverse: bool = x is b) -> Tensor:
                return function(weight, x) if reverse else function(x, weight)  # type: ignore[no-any-return]

            return layer(context, function, affine, x, weight, None)
    return function(a, b)


def _head_or_product(context: Propagation, function: Callable[..., Any], *factors: Any) -> list[Any]:
    """Return the factors of a matrix product of live tensors: two of them are an attention head's, unless that is frozen."""
    if context.rules.attention == "freeze":
        return shared(context, function, *factors)
    share = 1 / sum(map(live, factors)) if context.rules.attention == "uniform" else 1
    return [scale_gradient(factor, share) for factor in factors] if share < 1 else list(factors)


def einsum(context: Propagation, function: Callable[..., Any], equation: str, *operands: Any) -> Any:
    """Read `einsum`."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    operands = tuple(context.constant(operand) for operand in operands)
    if sum(map(live, operands)) > 1:
        operands = tuple(_head_or_product(context, function, *operands))
    return function(equation, *operands)


READERS: dict[str, Reader] = {
    "linear": linear,
    **{f"conv{n}d": convolution for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": convolution for n in (1, 2, 3)},
    **dict.fromkeys(("addmm", "baddbmm"), add_matrix_product),
    **dict.fromkeys(("matmul", "__matmul__", "bmm", "mm", "mv", "dot"), matrix_product),
    "einsum": einsum,
}
