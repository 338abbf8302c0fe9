"""Residual sums: a branch of the model is added to the tensor that it was computed from, its trunk.

Where branch and trunk have opposite signs they cancel, and the gradient gives both more relevance than their sum has.
The rule `gamma` divides the relevance of the sum z = a + b so that cancelling parts get less of it: it is LRP-gamma at
the sum (Berend et al. 2026). Where both have the same sign it is the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .. import autograd_graph as graph
from ..autograd_graph import live_edges, name_of
from ..frozen_factors import with_value
from .tensors import PlainFunction, in_float32

if TYPE_CHECKING:
    from ..context import Propagation


def add(context: Propagation, function: Callable[..., Any], a: Tensor, b: Tensor) -> Tensor:
    """Add two live tensors, by the rule for residual sums if they are a branch and its trunk."""
    if a.shape != b.shape or a.is_complex() or b.is_complex() or not (_joins(a, b) or _joins(b, a)):
        return function(a, b)  # type: ignore[no-any-return]
    if context.rules.residual.differentiates:
        out: Tensor = function(a, b)
    else:
        context.rule_for("residual", function)
        out = _shared(context, function, a, b)
    context.met_residual_sum(a, b, out)
    return out


def _shared(context: Propagation, function: Callable[..., Any], a: Tensor, b: Tensor) -> Tensor:
    gamma, frozen = context.rules.residual_gamma, context.frozen_factors
    with torch.no_grad():
        value = function(a, b)
    out: Tensor = ResidualSum.apply(a, b, [value], gamma)
    if frozen is None:
        return out
    part_a, part_b = shares(frozen.value(lambda: code(a, b, gamma)), gamma)
    return with_value(out, (in_float32(a.detach()) * part_a + in_float32(b.detach()) * part_b).to(value.dtype))


class ResidualSum(PlainFunction):
    """The value a + b, with the gradients of `shares`."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, value: list[Tensor], gamma: float) -> Tensor:
        ctx.save_for_backward(code(a, b, gamma).to(value[0].dtype))
        ctx.gamma, ctx.dtypes = gamma, (a.dtype, b.dtype)
        return value[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (saved,) = ctx.saved_tensors
        with torch._C.DisableTorchFunction():  # the context is active for checkpoints, and must not intercept this
            parts = shares(in_float32(saved), ctx.gamma)
            given = [(in_float32(grads[0]) * part).to(dtype) for part, dtype in zip(parts, ctx.dtypes, strict=True)]
        return *given, None, None


def code(a: Tensor, b: Tensor, gamma: float) -> Tensor:
    """Return the shares of both parts of a sum as one tensor: the share of `a`, negative if `a` is the smaller part.

    Let A be the part of z = a + b that has the sign of z, and B the other. If the signs of A and B differ, A gets
    (1 + gamma) z / (z + gamma A) of the gradient, and B gets z / (z + gamma A). These are from 0 to 1, and
    A's share times A plus B's share times B is z. Otherwise both get the whole gradient.
    """
    a, b = in_float32(a.detach()), in_float32(b.detach())
    total = a + b
    is_larger = a.abs() >= b.abs()
    smaller_share = (total / (total + gamma * torch.where(is_larger, a, b))).nan_to_num_(0.0)  # 0 / 0 if a + b is 0
    share = torch.where(is_larger, (1 + gamma) * smaller_share, -smaller_share)
    return torch.where(a * b < 0, share, 1.0)


def shares(coded: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Return the shares of `a` and `b` from the tensor that `code` returned."""
    of_a = coded.abs()
    of_b = torch.where(coded < 0, (1 + gamma) * of_a, torch.where(coded < 1, of_a / (1 + gamma), 1.0))
    return of_a, of_b


def _joins(trunk: Tensor, branch: Tensor) -> bool:
    """Return whether a branch was computed from a trunk by more than elementwise calls.

    The trunk may have been copied, cast, viewed, scaled or shifted by constants on its way to the sum. The parts of a
    rotary embedding are computed from the same tensor too, but elementwise.
    """
    ends = [get_gradient_edge(trunk).node]
    while _is_copied(ends[-1]) or name_of(ends[-1]) in graph.SUMS:
        edges = live_edges(ends[-1])
        if len(edges) != 1:
            break
        ends.append(edges[0][0])
    first = min(map(_number, ends))
    waiting: list[tuple[Any, bool]] = [(get_gradient_edge(branch).node, False)]
    seen: set[tuple[Any, bool]] = set()
    while waiting:
        node, is_mixed = waiting.pop()
        if node in ends:
            if is_mixed:
                return True
            continue
        if (node, is_mixed) in seen or _number(node) < first:  # computed before the trunk
            continue
        seen.add((node, is_mixed))
        is_mixed = is_mixed or not _is_elementwise(node)
        waiting += [(before, is_mixed) for before, _ in live_edges(node)]
    return False


def _number(node: Any) -> int:
    """Return the position of a node in the order of creation; leaves are first."""
    return 0 if name_of(node) == "AccumulateGrad" else int(node._sequence_nr())


def _is_copied(node: Any) -> bool:
    return name_of(node) in graph.MOVES or name_of(node) in ("Mul", "Div", "ScaleGradient", "WithValue")


def _is_elementwise(node: Any) -> bool:
    return _is_copied(node) or name_of(node) in _ELEMENTWISE


_ELEMENTWISE = (
    graph.SUMS | graph.ACTIVATIONS | graph.REDUCTIONS | graph.NORMS | graph.SELECTIONS
    | {"Ratio", "FusedActivation", "FrozenLayerNorm", "FrozenScale"}
)  # fmt: skip
"""Nodes that compute each position by itself, without weights, or a statistic of them."""
