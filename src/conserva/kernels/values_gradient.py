"""What attention hands back to its values: dV = P^T dO, with P made anew from the forward pass's log-sum-exp.

Under the AH-rule the probabilities are constants, so this is the whole backward pass: two matrix products, where the
gradient of attention takes five. A program owns a block of keys and walks over the queries of every head of its group.
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


@triton.jit
def _find_live_rows(
    grad, first, last,
    grad_b, grad_h, grad_q, grad_d,
    heads, queries, size,
    BLOCK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Find the first and the last query whose gradient is not 0, for every head: what lies outside adds nothing."""
    block, batch, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows, columns = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, SIZE)
    start = grad + batch.to(tl.int64) * grad_b + head.to(tl.int64) * grad_h
    there = (rows < queries)[:, None] & (columns < size)[None, :]
    x = tl.load(start + rows.to(tl.int64)[:, None] * grad_q + columns[None, :] * grad_d, mask=there, other=0.0)
    alive = tl.max((x != 0).to(tl.int32), 1)  # nan is not 0 either, and must be seen
    row = batch * heads + head
    tl.atomic_min(first + row, tl.min(tl.where(alive > 0, rows, queries)))
    tl.atomic_max(last + row, tl.max(tl.where(alive > 0, rows + 1, 0)))


@triton.jit
def _add_queries(
    total, k, query, grad, lse, mask, batch, head, start, end, columns, mask_q, mask_k, queries, keys, scale, window,
    BLOCK_Q: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, BOUND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what the queries from `start` to `end` of one head give to a block of values."""
    for row in range(start, end, BLOCK_Q):
        rows = row + tl.arange(0, BLOCK_Q)
        q = query.load([batch, head, row, 0]).reshape(BLOCK_Q, SIZE)
        g = grad.load([batch, head, row, 0]).reshape(BLOCK_Q, VALUE_SIZE)
        if BOUND:  # noqa: SIM108 - Triton compiles one of the two
            denominator = tl.load(lse + rows, mask=rows < queries, other=float("inf"))
        else:
            denominator = tl.load(lse + rows)
        # A query that sees no key takes nothing: its denominator is 0, and its logarithm must not meet another -inf.
        denominator = tl.where(denominator == float("-inf"), float("inf"), denominator)
        scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale
        if MASK != "none":
            at = mask + rows.to(tl.int64)[None, :] * mask_q + columns.to(tl.int64)[:, None] * mask_k
            m = tl.load(at, mask=(rows < queries)[None, :] & (columns < keys)[:, None], other=0)
        if MASK == "add":
            scores += m.to(tl.float32) * LOG2_E
        probabilities = tl.math.exp2(scores - (denominator * LOG2_E)[None, :])
        if MASK == "add":
            # Numbers so low that scores drown in them leave a query nothing to choose by: all keys alike.
            probabilities = tl.where((denominator < -1e30)[None, :], 1.0 / keys, probabilities)
        if MASK == "bool":
            probabilities = tl.where(m != 0, probabilities, 0.0)
        if BOUND:
            seen = (rows < queries)[None, :] & (columns < keys)[:, None]
            if CAUSAL:
                seen = seen & (columns[:, None] <= rows[None, :])
            if WINDOW:
                seen = seen & (rows[None, :] - columns[:, None] < window)
                if not CAUSAL:
                    seen = seen & (columns[:, None] - rows[None, :] < window)
            probabilities = tl.where(seen, probabilities, 0.0)
        total = tl.dot(probabilities.to(g.dtype), g, total, input_precision=PRECISION)
    return total


@triton.jit
def _values_gradient(
    query, key, grad, lse, mask, first, last, out,
    mask_b, mask_h, mask_q, mask_k, out_b, out_h, out_k, lse_b, lse_h,
    heads, group, queries, keys, value_size, scale, window,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Make the gradient of one block of values of one key-value head."""
    block, key_head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    low = block * BLOCK_K
    columns = low + tl.arange(0, BLOCK_K)
    k = key.load([batch, key_head, low, 0]).reshape(BLOCK_K, SIZE)
    total = tl.zeros([BLOCK_K, VALUE_SIZE], dtype=tl.float32)
    for member in range(group):
        head = key_head * group + member
        batch_far, head_far = batch.to(tl.int64), head.to(tl.int64)
        l_at, m_at = lse + batch_far * lse_b + head_far * lse_h, mask + batch_far * mask_b + head_far * mask_h
        start = tl.load(first + batch * heads + head)
        end = tl.load(last + batch * heads + head)
        if CAUSAL:
            start = tl.maximum(start, low)
        if WINDOW:
            end = tl.minimum(end, low + BLOCK_K + window - 1)
            if not CAUSAL:
                start = tl.maximum(start, low - window + 1)
        start = start // BLOCK_Q * BLOCK_Q
        # Blocks that a bound may cut come first and last; those between lie wholly inside and need no look at it.
        inner, outer = start, end // BLOCK_Q * BLOCK_Q
        if CAUSAL:
            inner = tl.maximum(start, tl.cdiv(low + BLOCK_K - 1, BLOCK_Q) * BLOCK_Q)
        if WINDOW:
            outer = tl.minimum(outer, (low + window) // BLOCK_Q * BLOCK_Q)
            if not CAUSAL:
                inner = tl.maximum(start, tl.cdiv(tl.maximum(low + BLOCK_K - window, 0), BLOCK_Q) * BLOCK_Q)
        inner = tl.minimum(inner, tl.cdiv(end, BLOCK_Q) * BLOCK_Q)
        outer = tl.maximum(outer, inner)
        if CAUSAL or WINDOW:
            total = _add_queries(
                total, k, query, grad, l_at, m_at, batch, head, start, inner, columns, mask_q, mask_k, queries, keys,
                scale, window, BLOCK_Q, SIZE, VALUE_SIZE, CAUSAL, WINDOW, MASK, True, PRECISION,
            )  # fmt: skip
        total = _add_queries(
            total, k, query, grad, l_at, m_at, batch, head, inner, outer, columns, mask_q, mask_k, queries, keys,
            scale, window, BLOCK_Q, SIZE, VALUE_SIZE, CAUSAL, WINDOW, MASK, False, PRECISION,
        )  # fmt: skip
        total = _add_queries(
            total, k, query, grad, l_at, m_at, batch, head, outer, end, columns, mask_q, mask_k, queries, keys,
            scale, window, BLOCK_Q, SIZE, VALUE_SIZE, CAUSAL, WINDOW, MASK, True, PRECISION,
        )  # fmt: skip
    across = tl.arange(0, VALUE_SIZE)
    at = out + batch.to(tl.int64) * out_b + key_head.to(tl.int64) * out_h
    at += columns.to(tl.int64)[:, None] * out_k + across[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=(columns < keys)[:, None] & (across < value_size)[None, :])


@dataclass(frozen=True)
class Blocks:
    """How the work is cut: queries and keys a block, warps and pipeline stages a program."""

    queries: int
    keys: int
    warps: int
    stages: int


def blocks_for(size: int, dtype: torch.dtype) -> Blocks:
    """Return the blocks for the larger of two padded head sizes: what was fastest on an H200."""
    if dtype == torch.float32:
        return Blocks(32, 64 if size <= 64 else 32, 4, 1)
    if size <= 64:
        return Blocks(128, 64, 4, 3)
    return Blocks(32, 128, 8, 3) if size <= 128 else Blocks(32, 64, 4, 2)


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
    """Return dV for queries, keys and an output's gradient of samples x heads x places x size.

    Parameters
    ----------
    lse
        The logarithm of each query's softmax denominator, samples x heads x queries, natural, in float32.
    mask
        True where a key is seen, or numbers to add to the scores; any shape that expands to that of the scores.
    is_causal
        Whether a query sees the keys up to its own place alone.
    window
        How many keys a query sees, its own included, backward (and forward unless causal); 0 for all.
    scale
        The factor of the scores.
    blocks
        How the work is cut, where the default is not wanted.
    """
    batch, heads, queries, size = query.shape
    _, key_heads, keys, _ = key.shape
    value_size = grad.shape[-1]
    # Laid out place by place, head after head: what a model's reshape to its own width wants.
    out = torch.empty(batch, keys, key_heads, value_size, dtype=grad.dtype, device=grad.device).transpose(1, 2)
    first = torch.full((batch, heads), queries, dtype=torch.int32, device=grad.device)
    last = torch.zeros((batch, heads), dtype=torch.int32, device=grad.device)
    padded, padded_value = (max(16, triton.next_power_of_2(one)) for one in (size, value_size))
    cut = blocks or blocks_for(max(padded, padded_value), query.dtype)
    kind, numbers = "none", lse
    mask_strides: tuple[int, ...] = (0, 0, 0, 0)
    if mask is not None:
        kind = "bool" if mask.dtype == torch.bool else "add"
        numbers = (mask.view(torch.uint8) if kind == "bool" else mask).expand(batch, heads, queries, keys)
        mask_strides = numbers.stride()
    grad = _aligned(grad)
    _find_live_rows[(triton.cdiv(queries, 128), batch, heads)](
        grad, first, last, *grad.stride(), heads, queries, value_size, BLOCK=128, SIZE=padded_value
    )
    exact = query.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    _values_gradient[(triton.cdiv(keys, cut.keys), key_heads, batch)](
        _blocks_of(_aligned(query), cut.queries, padded), _blocks_of(_aligned(key), cut.keys, padded),
        _blocks_of(grad, cut.queries, padded_value), lse, numbers, first, last, out,
        *mask_strides, *out.stride()[:3], *lse.stride()[:2],
        heads, heads // key_heads, queries, keys, value_size, scale * math.log2(math.e), window,
        BLOCK_Q=cut.queries, BLOCK_K=cut.keys, SIZE=padded, VALUE_SIZE=padded_value,
        CAUSAL=is_causal, WINDOW=window > 0, MASK=kind, PRECISION="ieee" if exact else "tf32",
        num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return out


def _aligned(x: Tensor) -> Tensor:
    """Return `x` as the copy engine takes it: rows dense, and every row, head and sample on a border of 16 bytes."""
    unit = 16 // x.element_size()
    if x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(n > 0 and n % unit == 0 for n in x.stride()[:-1]):
        return x
    size = x.shape[-1]
    copy = torch.empty(*x.shape[:-1], -(-size // unit) * unit, dtype=x.dtype, device=x.device)[..., :size]
    return copy.copy_(x)


def _blocks_of(x: Tensor, places: int, size: int) -> TensorDescriptor:
    """Return `x` as blocks of places, each with whole heads; what lies outside reads as 0."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, places, size])
