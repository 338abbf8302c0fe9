"""Linear layers, convolutions and matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..frozen_factors import with_value
from .arithmetic import multiply
from .linear_origins import set_linear_origin
from .tensors import in_float32, live

if TYPE_CHECKING:
    from ..context import Propagation
    from .tensors import Reader

    Affine = Callable[[Tensor, Tensor, Any], Tensor]


class Stabilised(Function):
    """The value z, with the gradient of z' times z / (z' + epsilon sign z'): z' is z, or z with larger weights."""

    @staticmethod
    def forward(ctx: Any, shared_by: Tensor, value: list[Tensor], epsilon: float) -> Tensor:
        divisor = in_float32(shared_by)
        divisor = divisor + torch.where(divisor < 0, -epsilon, epsilon)
        ctx.save_for_backward((in_float32(value[0]) / divisor).to(shared_by.dtype))
        return value[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (share,) = ctx.saved_tensors
        return grads[0] * share, None, None


def _zero(context: Propagation, affine: Affine, x: Tensor, weight: Tensor, bias: Any) -> tuple[Tensor, Any, Tensor]:
    out = affine(x, weight, bias)
    return out, bias, out


def _epsilon(context: Propagation, affine: Affine, x: Tensor, weight: Tensor, bias: Any) -> tuple[Tensor, Any, Tensor]:
    value = affine(x, weight, bias)
    return value, bias, _stabilised(context, value, value.detach().clone())


def _gamma(context: Propagation, affine: Affine, x: Tensor, weight: Tensor, bias: Any) -> tuple[Tensor, Any, Tensor]:
    gamma = context.rules.gamma
    with torch.no_grad():
        value = affine(x, weight, bias)
        weight = weight + gamma * weight.clamp(min=0)
        bias = None if bias is None else bias + gamma * bias.clamp(min=0)
    raised = affine(x, weight, bias)
    return raised, bias, _stabilised(context, raised, value)


def _stabilised(context: Propagation, shared_by: Tensor, value: Tensor) -> Tensor:
    epsilon = context.rules.epsilon
    out: Tensor = Stabilised.apply(shared_by, [value], epsilon)  # type: ignore[no-untyped-call]
    if context.frozen_factors is None:
        return out
    base, before = context.frozen_factors.value(lambda: value), context.frozen_factors.value(lambda: shared_by)
    share = base / (before + torch.where(before < 0, -epsilon, epsilon))
    return with_value(out, base + share * (shared_by.detach() - before))


RULES: dict[str, Callable[..., tuple[Tensor, Any, Tensor]]] = {"zero": _zero, "epsilon": _epsilon, "gamma": _gamma}
"""Name of a rule -> the function that applies it to a layer.

It returns the tensor at which the ledger records the bias, that bias, and the output of the layer.
"""


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
    """Read a linear layer.

    Parameters
    ----------
    context, function
        The context, and the torch function that was called.
    affine
        Computes the layer: `affine(x, weight, bias)`.
    x, weight, bias
        Its arguments.
    trailing
        The number of dimensions of the output after that of the bias.
    factor
        The factor of the bias.
    """
    if live(weight):
        if live(x):
            x, weight = _bilinear(context, function, x, weight)
        out = affine(x, weight, bias)
        context.record_constant(out, _along(bias, trailing), factor=factor, of=bias)
        return out
    if not live(x):
        out = affine(x, weight, bias)
        if live(bias):  # the product is a constant that is added to a live tensor
            context.record_constant(out, affine(x, weight, torch.zeros_like(bias)))
        return out
    biased, bias_used, out = RULES[context.rule_for("linear", function).name](context, affine, x, weight, bias)
    if not live(bias):
        context.record_constant(biased, _along(bias_used, trailing), factor=factor, of=bias, of_layer=True)
    return out


def _along(bias: Any, trailing: int) -> Any:
    return bias.reshape(-1, *[1] * trailing) if isinstance(bias, Tensor) and trailing else bias


def linear(context: Propagation, function: Callable[..., Any], input: Any, weight: Any, bias: Any = None) -> Any:
    """Read `linear`."""
    if not context.rules.linear.differentiates or not live(input) or live(weight) or live(bias):
        return layer(context, function, function, input, weight, bias)
    context.rule_for("linear", function)  # a fast path for most layers
    leaf = context.record_leaf(bias, of_layer=True)
    out = function(input, weight, bias if leaf is None else leaf)
    if bias is not None and leaf is None:
        context.record_constant(out, bias, of_layer=True)
    if context.keeper is not None and context.keeper.is_large(out):
        set_linear_origin(context, out, input, weight, bias)
    return out


def convolution(
    context: Propagation,
    function: Callable[..., Any],
    input: Any,
    weight: Any,
    bias: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Read convolutions."""

    def affine(x: Tensor, weight: Tensor, bias: Any) -> Tensor:
        return function(x, weight, bias, *args, **kwargs)  # type: ignore[no-any-return]

    return layer(context, function, affine, input, weight, bias, trailing=weight.dim() - 2)


def add_matrix_product(
    context: Propagation,
    function: Callable[..., Any],
    input: Any,
    *factors: Any,
    beta: float = 1,
    alpha: float = 1,
    **named: Any,
) -> Any:
    """Read `addmm` and `baddbmm`, `beta * input + alpha * a @ b`: a linear layer whose weight is one of the factors."""
    a, b = (*factors, *named.values())  # mat1 and mat2, or batch1 and batch2
    reverse = live(b) and not live(a)

    def affine(x: Tensor, weight: Tensor, bias: Any) -> Tensor:
        return function(bias, *((weight, x) if reverse else (x, weight)), beta=beta, alpha=alpha)  # type: ignore[no-any-return]

    x, weight = (b, a) if reverse else (a, b)
    return layer(context, function, affine, x, weight, input, factor=beta)


def matrix_product(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read `a @ b`: of attention, of other live tensors, or a linear layer without `linear`."""
    a, b = (input, *args, *kwargs.values())  # the second is called other, mat2, vec or tensor
    if live(a) and live(b):
        return function(*_bilinear(context, function, a, b))
    if live(b) and b.dim() <= 2 and context.constants is not None:
        context.constants.rows_shuffled = True  # a constant matrix mixes the rows, as when tokens are routed to experts
    for x, weight in ((a, b), (b, a)):
        if live(x) and not context.rules.linear.differentiates and context.parameter_of(weight) is not None:

            def affine(x: Tensor, weight: Tensor, bias: None, reverse: bool = x is b) -> Tensor:
                return function(weight, x) if reverse else function(x, weight)  # type: ignore[no-any-return]

            return layer(context, function, affine, x, weight, None)
    return function(a, b)


def _bilinear(context: Propagation, function: Callable[..., Any], *factors: Any) -> list[Any]:
    """Return the factors of a matrix product of live tensors, with their gradients scaled as the rules say.

    Whether the product is part of an attention is not known yet; `graph_check` decides that after the forward pass.
    """
    rules = context.rules
    halved = rules.bilinear.shares or (rules.bilinear.refuses and rules.attention.shares)
    if not rules.bilinear.refuses:
        context.rule_for("bilinear", function)
    share = 1 / sum(map(live, factors)) if halved else 1
    return [context.share(factor, share) for factor in factors] if share < 1 else list(factors)


def einsum(context: Propagation, function: Callable[..., Any], equation: str, *operands: Any) -> Any:
    """Read `einsum`."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    operands = tuple(context.constant(operand) for operand in operands)
    if context.constants is not None:
        names, _, result = equation.replace(" ", "").partition("->")
        for name, operand in zip(names.split(","), operands, strict=True):
            if live(operand) and name[:1] != result[:1]:
                context.constants.samples_moved = context.constants.rows_shuffled = True
    if sum(map(live, operands)) > 1:
        names, _, result = equation.replace(" ", "").partition("->")
        if names.split(",") == [result, result]:
            return multiply(context, torch.mul, *operands)
        operands = tuple(_bilinear(context, function, *operands))
    return function(equation, *operands)


def solve(context: Propagation, function: Callable[..., Any], A: Any, B: Any, **kwargs: Any) -> Any:  # noqa: N803
    """Read `solve_triangular`. Unless products are differentiated, the matrix is a constant, like a divisor."""
    if live(A) and not context.rule_for("product", function).differentiates:
        A = context.frozen(A)  # noqa: N806
    return function(A, B, **kwargs)


READERS: dict[str, Reader] = {
    "linear": linear,
    **{f"conv{n}d": convolution for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": convolution for n in (1, 2, 3)},
    **dict.fromkeys(("addmm", "baddbmm"), add_matrix_product),
    **dict.fromkeys(("matmul", "__matmul__", "bmm", "mm", "mv", "dot"), matrix_product),
    "einsum": einsum,
    "linalg_solve_triangular": solve,
}
