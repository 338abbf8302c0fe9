"""The gradient of a LayerNorm whose scale is a constant, in one kernel that does not read the norm's input."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 8192
"""The largest number of elements that are normalised together: one program holds all of them."""


@triton.jit
def _norm_gradient(grad, scale, weight, grad_x, width, WEIGHED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < width
    g = tl.load(grad + row * width + at, mask=there, other=0.0).to(tl.float32)
    if WEIGHED:
        g *= tl.load(weight + at, mask=there, other=0.0).to(tl.float32)
    g = (g - tl.sum(g, 0) / width) * tl.load(scale + row).to(tl.float32)
    tl.store(grad_x + row * width + at, g.to(grad_x.dtype.element_ty), mask=there)


def norm_gradient(grad: Tensor, scale: Tensor, weight: Tensor | None) -> Tensor:
    """Return the gradient of `x`, given that of `(x - mean) * scale * weight`; one scale for each mean."""
    grad_x, rows = torch.empty_like(grad), scale.numel()
    width = grad.numel() // max(rows, 1)
    block = triton.next_power_of_2(width)
    _norm_gradient[(rows,)](
        grad,
        scale,
        scale if weight is None else weight,
        grad_x,
        width,
        WEIGHED=weight is not None,
        BLOCK=block,
        num_warps=min(max(block // 256, 1), 16),
    )
    return grad_x


def fits(grad: Tensor, scale: Tensor, weight: Tensor | None) -> bool:
    """Return whether the kernel supports these tensors."""
    parts = [grad, scale] if weight is None else [grad, scale, weight]
    plain = all(x.is_contiguous() and x.dtype != torch.float64 for x in parts)
    return plain and 0 < grad.numel() <= WIDEST * scale.numel() and _has_storage(grad)


def _has_storage(x: Tensor) -> bool:
    """Return whether a tensor has memory that a kernel can read; tensors inside torch.vmap do not."""
    try:
        return x.data_ptr() != 0
    except RuntimeError:
        return False
