"""The gradient of attention's values: dV = P^T dO, with P recomputed from the log-sum-exp of the forward pass.

Under the AH-rule the probabilities are constants, so this is the whole backward pass: two matrix products instead of
five. A program computes one block of keys, and loops over the queries of all heads in the group of its key head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = tl.constexpr(math.log2(math.e))

PREPARED = 128
"""The number of queries of one `_prepare` program; no block of queries is larger, so that all blocks are complete."""


@triton.jit
def _prepare(
    grad, lse, first, last, denominators,
    grad_b, grad_h, grad_q, grad_d, lse_b, lse_h, lse_q,
    heads, queries, rounded, size,
    BLOCK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Find the first and the last query of every head with a nonzero gradient: others contribute nothing.

    Also convert the log-sum-exp to base 2, with infinity for padding queries, so that the loops need no bounds checks.
    """
    block, batch, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows, columns = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, SIZE)
    batch_far, head_far, far, there = batch.to(tl.int64), head.to(tl.int64), rows.to(tl.int64), rows < queries
    line = batch * heads + head
    logs = tl.load(lse + batch_far * lse_b + head_far * lse_h + far * lse_q, mask=there, other=float("inf"))
    # A fully masked query attends to nothing: its log-sum-exp is -inf, and -inf - (-inf) would be nan.
    logs = tl.where(logs == float("-inf"), float("inf"), logs) * LOG2_E
    tl.store(denominators + line.to(tl.int64) * rounded + far, logs, mask=rows < rounded)
    at = grad + batch_far * grad_b + head_far * grad_h + far[:, None] * grad_q + columns[None, :] * grad_d
    x = tl.load(at, mask=there[:, None] & (columns < size)[None, :], other=0.0)
    alive = tl.max((x != 0).to(tl.int32), 1)  # nan != 0 is true, so nan is propagated
    tl.atomic_min(first + line, tl.min(tl.where(alive > 0, rows, queries)))
    tl.atomic_max(last + line, tl.max(tl.where(alive > 0, rows + 1, 0)))


@triton.jit
def _add_queries(
    total, k, query, grad, denominators, mask, batch, head, start, end, columns, mask_q, mask_k, queries, keys, scale,
    window,
    BLOCK_Q: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, BOUND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the contribution of the queries from `start` to `end` of one head to the gradient of a block of values."""
    for row in range(start, end, BLOCK_Q):
        row = tl.multiple_of(row, BLOCK_Q)
        rows = row + tl.arange(0, BLOCK_Q)
        q = query.load([batch, head, row, 0]).reshape(BLOCK_Q, SIZE)
        g = grad.load([batch, head, row, 0]).reshape(BLOCK_Q, VALUE_SIZE)
        denominator = tl.load(denominators + rows)
        scores = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        if MASK == "none":
            probabilities = tl.math.exp2(scores * scale - denominator[None, :])
        else:
            at = mask + rows.to(tl.int64)[None, :] * mask_q + columns.to(tl.int64)[:, None] * mask_k
            m = tl.load(at, mask=(rows < queries)[None, :] & (columns < keys)[:, None], other=0)
            if MASK == "add":
                probabilities = tl.math.exp2(scores * scale + m.to(tl.float32) * LOG2_E - denominator[None, :])
                # A mask so low that it absorbs all scores of a query leaves all keys equal.
                probabilities = tl.where((denominator < -1e30)[None, :], 1.0 / keys, probabilities)
            else:
                probabilities = tl.where(m != 0, tl.math.exp2(scores * scale - denominator[None, :]), 0.0)
        if BOUND:
            distance = rows[None, :] - columns[:, None]
            if CAUSAL:
                probabilities = tl.where(distance >= 0, probabilities, 0.0)
            if WINDOW:
                probabilities = tl.where(distance < window, probabilities, 0.0)
                if not CAUSAL:
                    probabilities = tl.where(-distance < window, probabilities, 0.0)
        total = tl.dot(probabilities.to(g.dtype), g, total, input_precision=PRECISION)
    return total


@triton.jit
def _values_gradient(
    query, key, grad, denominators, mask, first, last, out,
    mask_b, mask_h, mask_q, mask_k, out_b, out_h, out_k,
    heads, group, queries, rounded, keys, value_size, scale, window,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of one block of values of one key-value head."""
    block, key_head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    low = block * BLOCK_K
    columns = low + tl.arange(0, BLOCK_K)
    k = key.load([batch, key_head, low, 0]).reshape(BLOCK_K, SIZE)
    total = tl.zeros([BLOCK_K, VALUE_SIZE], dtype=tl.float32)
    for member in range(group):
        head = key_head * group + member
        line = batch * heads + head
        d_at = denominators + line.to(tl.int64) * rounded
        m_at = mask + batch.to(tl.int64) * mask_b + head.to(tl.int64) * mask_h
        start, end = tl.load(first + line), tl.load(last + line)
        if CAUSAL:
            start = tl.maximum(start, low)
        if WINDOW:
            end = tl.minimum(end, low + BLOCK_K + window - 1)
            if not CAUSAL:
                start = tl.maximum(start, low - window + 1)
        # Only the first and the last blocks may cross the causal or window bounds; those in between need no check.
        start, end = start // BLOCK_Q * BLOCK_Q, tl.cdiv(end, BLOCK_Q) * BLOCK_Q
        inner, outer = start, end
        if CAUSAL:
            inner = tl.maximum(start, tl.cdiv(low + BLOCK_K - 1, BLOCK_Q) * BLOCK_Q)
        if WINDOW:
            outer = tl.minimum(outer, (low + window) // BLOCK_Q * BLOCK_Q)
            if not CAUSAL:
                inner = tl.maximum(start, tl.cdiv(tl.maximum(low + BLOCK_K - window, 0), BLOCK_Q) * BLOCK_Q)
        inner = tl.minimum(inner, end)
        outer = tl.maximum(outer, inner)
        if CAUSAL or WINDOW:
            total = _add_queries(
                total, k, query, grad, d_at, m_at, batch, head, start, inner, columns, mask_q, mask_k, queries, keys,
                scale, window, BLOCK_Q, SIZE, VALUE_SIZE, CAUSAL, WINDOW, MASK, True, PRECISION,
            )  # fmt: skip
        total = _add_queries(
            total, k, query, grad, d_at, m_at, batch, head, inner, outer, columns, mask_q, mask_k, queries, keys,
            scale, window, BLOCK_Q, SIZE, VALUE_SIZE, CAUSAL, WINDOW, MASK, False, PRECISION,
        )  # fmt: skip
        if WINDOW:
            total = _add_queries(
                total, k, query, grad, d_at, m_at, batch, head, outer, end, columns, mask_q, mask_k, queries, keys,
                scale, window, BLOCK_Q, SIZE, VALUE_SIZE, CAUSAL, WINDOW, MASK, True, PRECISION,
            )  # fmt: skip
    across = tl.arange(0, VALUE_SIZE)
    at = out + batch.to(tl.int64) * out_b + key_head.to(tl.int64) * out_h
    at += columns.to(tl.int64)[:, None] * out_k + across[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=(columns < keys)[:, None] & (across < value_size)[None, :])


@dataclass(frozen=True)
class Blocks:
    """The launch configuration: queries and keys per block, warps, pipeline stages, and the limit of registers."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None


def blocks_for(size: int, dtype: torch.dtype) -> Blocks:
    """Return the configuration that was fastest on an H200, given the larger of the two padded head sizes."""
    if dtype == torch.float32:
        return Blocks(32, 64 if size <= 64 else 32, 4, 1)
    if size <= 64:
        return Blocks(128, 64, 4, 3)
    # With 128 registers two programs share a multiprocessor: one's matrix products overlap the other's exponentials.
    return Blocks(64, 128, 8, 2, 128) if size <= 128 else Blocks(32, 64, 4, 2)


def values_gradient(
    query: Tensor,
    key: Tensor,
    grad: Tensor,
    lse: Tensor,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    window: int = 0,
    scale: float,
    blocks: Blocks | None = None,
) -> Tensor:
    """Return the gradient of the values, samples x key heads x keys x size.

    Parameters
    ----------
    query, key
        Samples x heads x positions x size.
    grad
        The gradient of the output of attention, samples x heads x queries x size.
    lse
        The log-sum-exp of each query, samples x heads x queries, in float32.
    mask
        True for keys that are attended to, or a tensor that is added to the scores; of any shape that expands to that
        of the scores.
    is_causal
        Whether a query attends only to keys up to its own position.
    window
        The number of keys that a query attends to, its own included, backward (and forward unless causal); 0 for all.
    scale
        The factor of the scores.
    blocks
        The launch configuration; None for the default.
    """
    batch, heads, queries, size = query.shape
    _, key_heads, keys, _ = key.shape
    value_size = grad.shape[-1]
    # With heads next to each other at every position, so that the model's reshape to its hidden size is a view.
    out = torch.empty(batch, keys, key_heads, value_size, dtype=grad.dtype, device=grad.device).transpose(1, 2)
    first = torch.full((batch, heads), queries, dtype=torch.int32, device=grad.device)
    last = torch.zeros((batch, heads), dtype=torch.int32, device=grad.device)
    rounded = triton.cdiv(queries, PREPARED) * PREPARED
    denominators = torch.empty(batch, heads, rounded, dtype=torch.float32, device=grad.device)
    padded, padded_value = (max(16, triton.next_power_of_2(n)) for n in (size, value_size))
    cut = blocks or blocks_for(max(padded, padded_value), query.dtype)
    kind, numbers = "none", lse
    mask_strides: tuple[int, ...] = (0, 0, 0, 0)
    if mask is not None:
        kind = "bool" if mask.dtype == torch.bool else "add"
        numbers = (mask.view(torch.uint8) if kind == "bool" else mask).expand(batch, heads, queries, keys)
        mask_strides = numbers.stride()
    grad = _aligned(grad)
    _prepare[(rounded // PREPARED, batch, heads)](
        grad, lse, first, last, denominators, *grad.stride(), *lse.stride(),
        heads, queries, rounded, value_size, BLOCK=PREPARED, SIZE=padded_value,
    )  # fmt: skip
    exact = query.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    _values_gradient[(triton.cdiv(keys, cut.keys), key_heads, batch)](
        _blocks_of(_aligned(query), cut.queries, padded), _blocks_of(_aligned(key), cut.keys, padded),
        _blocks_of(grad, cut.queries, padded_value), denominators, numbers, first, last, out,
        *mask_strides, *out.stride()[:3],
        heads, heads // key_heads, queries, rounded, keys, value_size, scale * math.log2(math.e), window,
        BLOCK_Q=cut.queries, BLOCK_K=cut.keys, SIZE=padded, VALUE_SIZE=padded_value,
        CAUSAL=is_causal, WINDOW=window > 0, MASK=kind, PRECISION="ieee" if exact else "tf32",
        num_warps=cut.warps, num_stages=cut.stages, maxnreg=cut.registers,
    )  # fmt: skip
    return out


def _aligned(x: Tensor) -> Tensor:
    """Return `x` as tensor descriptors need it: with contiguous rows, and all other strides multiples of 16 bytes."""
    unit = 16 // x.element_size()
    if x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(n > 0 and n % unit == 0 for n in x.stride()[:-1]):
        return x
    size = x.shape[-1]
    copy = torch.empty(*x.shape[:-1], -(-size // unit) * unit, dtype=x.dtype, device=x.device)[..., :size]
    return copy.copy_(x)


def _blocks_of(x: Tensor, positions: int, size: int) -> TensorDescriptor:
    """Return a descriptor that loads `x` in blocks of positions x size; elements out of bounds are 0."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, positions, size])
