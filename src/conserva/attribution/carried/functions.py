"""The rules as autograd functions, whose backward maps the relevance of the output to that of the inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ...engine.operations.tensors import in_float32

TINY = 1e-9


def own(value: Tensor) -> Tensor:
    """Return a value, copied if it is a view: views returned by autograd functions cannot be changed in place."""
    return value.clone() if value._is_view() else value


def quotient(a: Tensor, b: Tensor) -> Tensor:
    """Return a / b, 0 where b is 0, with a divisor that is kept away from 0 elsewhere."""
    stable = b + torch.where(b < 0, -TINY, TINY)
    return torch.where(b == 0, torch.zeros_like(a), a / stable)


class Carried(Function):
    """A value whose relevance is passed to one tensor: R_x = R."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: list[Tensor]) -> Tensor:
        ctx.dtype = x.dtype
        return own(value[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].to(ctx.dtype), None


class Halved(Function):
    """A value that passes half of its relevance to each of two tensors."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, value: list[Tensor]) -> Tensor:
        ctx.dtypes = a.dtype, b.dtype
        return own(value[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        half = grads[0] / 2
        return half.to(ctx.dtypes[0]), half.to(ctx.dtypes[1]), None


class SharedSum(Function):
    """A sum of two tensors that share its relevance, for each sample (Chefer et al., equations 9 and 10)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, value: list[Tensor], axis: int | None) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.axis = axis
        return own(value[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        a, b = ctx.saved_tensors
        x, y, relevance = in_float32(a), in_float32(b), in_float32(grads[0])

        def total(t: Tensor) -> Tensor:
            others = [axis for axis in range(t.dim()) if axis != ctx.axis]
            return t.sum(others, keepdim=True) if others else t

        share = quotient(relevance, x + y)
        parts = x * share, y * share
        sums = total(parts[0]), total(parts[1])
        whole = quotient(total(relevance), sums[0].abs() + sums[1].abs())
        scaled = [part * quotient(one.abs() * whole, one) for part, one in zip(parts, sums, strict=True)]
        return scaled[0].to(a.dtype), scaled[1].to(b.dtype), None, None


class SharedProduct(Function):
    """A product of two live tensors: each gets half of x dz/dx R / z."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, call: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.call = call
        return call(a, b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        x, y = (in_float32(t).detach().requires_grad_() for t in (a, b))
        with torch.enable_grad():
            z = ctx.call(x, y)
            of_x, of_y = torch.autograd.grad(z, (x, y), quotient(in_float32(grads[0]), z.detach()))
        return (x.detach() * of_x / 2).to(a.dtype), (y.detach() * of_y / 2).to(b.dtype), None


class Positive(Function):
    """A linear call, whose relevance is shared by its positive products; its bias gets none."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, value: list[Tensor], call: Callable[[Tensor, Tensor | None], Tensor], w: Any
    ) -> Any:
        ctx.save_for_backward(x, w)
        ctx.call = call
        return own(value[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        weight = None if w is None else in_float32(w)
        positive, negative = in_float32(x).clamp(min=0).requires_grad_(), in_float32(x).clamp(max=0).requires_grad_()
        with torch.enable_grad():
            z = ctx.call(positive, None if weight is None else weight.clamp(min=0))
            if weight is not None:
                z = z + ctx.call(negative, weight.clamp(max=0))
            share = quotient(in_float32(grads[0]), z.detach())
            parts = (positive, negative)
            grads_x = torch.autograd.grad(z, parts, share, allow_unused=True)
        relevance = sum(part.detach() * grad for part, grad in zip(parts, grads_x, strict=True) if grad is not None)
        return torch.as_tensor(relevance).to(x.dtype), None, None, None


def carry(x: Tensor, value: Tensor) -> Tensor:
    """Return a value whose relevance is passed to `x` unchanged, summed over dimensions in which `x` is expanded."""
    wide = x if x.shape == value.shape else x.expand(value.shape)
    return Carried.apply(wide, [value])  # type: ignore[no-untyped-call, no-any-return]
