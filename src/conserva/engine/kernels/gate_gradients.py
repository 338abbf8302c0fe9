"""Gradients of `f(x)` and of both factors of `f(x) * up` in one kernel, where torch launches several."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
"""The number of elements of one program."""

KINDS = ("silu", "gelu", "gelu_tanh", "relu")
"""The functions f that the kernels support."""

_LOG2_E = tl.constexpr(1.4426950408889634)
_ROOT_HALF = tl.constexpr(0.7071067811865476)
_DENSITY = tl.constexpr(0.3989422804014327)  # the density of the normal distribution at 0
_TANH_SCALE, _TANH_CUBE = tl.constexpr(0.7978845608028654), tl.constexpr(0.044715)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.math.exp2(-x * _LOG2_E))


@triton.jit
def _gate_and_slope(x, KIND: tl.constexpr):
    """Return f(x) / x, with its limit at 0, and f'(x)."""
    if KIND == "silu":
        gate = _sigmoid(x)
        slope = gate * (1.0 + x * (1.0 - gate))
    elif KIND == "gelu":
        gate = 0.5 * (1.0 + tl.math.erf(x * _ROOT_HALF))
        slope = gate + x * _DENSITY * tl.math.exp2(-0.5 * x * x * _LOG2_E)
    elif KIND == "gelu_tanh":
        inner = _TANH_SCALE * (x + _TANH_CUBE * x * x * x)
        gate = _sigmoid(2.0 * inner)  # 0.5 * (1 + tanh(inner))
        slope = gate + x * 2.0 * gate * (1.0 - gate) * _TANH_SCALE * (1.0 + 3.0 * _TANH_CUBE * x * x)
    else:
        gate = tl.where(x > 0, 1.0, 0.0)
        slope = gate
    return gate, slope


@triton.jit
def _gate_gradients(
    grad, x, up, grad_x, grad_up, count, share, KIND: tl.constexpr, RATIO: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    g = tl.load(grad + at, mask=there, other=0.0).to(tl.float32) * share
    u = tl.load(up + at, mask=there, other=0.0).to(tl.float32)
    source = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    gate, slope = _gate_and_slope(source, KIND)
    if RATIO:
        slope = gate
    tl.store(grad_x + at, (g * u * slope).to(grad_x.dtype.element_ty), mask=there)
    tl.store(grad_up + at, (g * source * gate).to(grad_up.dtype.element_ty), mask=there)


@triton.jit
def _ratio_gradient(grad, x, grad_x, count, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    g = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
    source = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    gate, _slope = _gate_and_slope(source, KIND)
    tl.store(grad_x + at, (g * gate).to(grad_x.dtype.element_ty), mask=there)


def gate_gradients(
    grad: Tensor, x: Tensor, up: Tensor, *, kind: str, ratio: bool, share: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `x` and `up`, given that of `f(x) * up`.

    Parameters
    ----------
    grad, x, up
        The incoming gradient and the two arguments, contiguous and of the same dtype.
    kind
        The function f, one of `KINDS`.
    ratio
        Whether f is x times the constant f(x) / x; otherwise it is differentiated.
    share
        The fraction of the gradient that each factor gets.
    """
    grad_x, grad_up = torch.empty_like(x), torch.empty_like(up)
    count = x.numel()
    _gate_gradients[(triton.cdiv(count, BLOCK),)](
        grad, x, up, grad_x, grad_up, count, share, KIND=kind, RATIO=ratio, BLOCK=BLOCK, num_warps=8
    )
    return grad_x, grad_up


def ratio_gradient(grad: Tensor, x: Tensor, *, kind: str) -> Tensor:
    """Return the gradient of `x`, given that of `f(x)` as x times the constant f(x) / x."""
    grad_x, count = torch.empty_like(x), x.numel()
    _ratio_gradient[(triton.cdiv(count, BLOCK),)](grad, x, grad_x, count, KIND=kind, BLOCK=BLOCK, num_warps=8)
    return grad_x
