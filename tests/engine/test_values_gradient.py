"""The GPU kernel for dV = P^T dO, against sums written out in float64; without a GPU in Triton's interpreter."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="the kernel is written in Triton")

from conserva.engine.kernels.values_gradient import Blocks, _aligned, blocks_for, values_gradient

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 5e-3}
SMALL = Blocks(16, 32, 4, 1)
INTERPRETED = pytest.mark.skipif(DEVICE == "cpu", reason="Triton's interpreter multiplies bfloat16 as if integers")
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=INTERPRETED)]


@dataclass(frozen=True)
class Shape:
    """One attention: sizes, and who sees whom."""

    samples: int = 1
    heads: int = 2
    key_heads: int = 2
    queries: int = 48
    keys: int = 48
    size: int = 16
    value_size: int = 16
    is_causal: bool = False
    window: int = 0
    mask: str = ""


SHAPES = {
    "full": Shape(),
    "causal": Shape(is_causal=True),
    "causal, odd length": Shape(is_causal=True, queries=71, keys=71),
    "fewer queries": Shape(queries=7, keys=50),
    "fewer keys": Shape(queries=50, keys=7),
    "one query": Shape(queries=1, keys=33),
    "grouped heads": Shape(samples=2, heads=6, key_heads=2, is_causal=True),
    "one key head": Shape(heads=4, key_heads=1),
    "window": Shape(queries=90, keys=90, is_causal=True, window=20),
    "window of one": Shape(queries=40, keys=40, is_causal=True, window=1),
    "window both ways": Shape(queries=90, keys=90, window=20),
    "head size 24": Shape(size=24, value_size=24),
    "head size 20": Shape(size=20, value_size=12),
    "values of another size": Shape(size=32, value_size=64),
    "head size 128": Shape(size=128, value_size=128, is_causal=True),
    "head size 256": Shape(size=256, value_size=256, queries=32, keys=32),
    "padding": Shape(samples=2, mask="padding"),
    "left padding, causal": Shape(samples=2, mask="left", is_causal=True),
    "additive": Shape(mask="additive"),
    "additive, causal": Shape(mask="additive", is_causal=True),
    "lowest numbers": Shape(samples=2, mask="lowest"),
    "a query that sees nothing": Shape(samples=2, mask="closed"),
    "a query whose scores are all -inf": Shape(mask="all -inf"),
    "a query whose scores all drown": Shape(mask="all lowest"),
}


def made(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, keys, an output's gradient and a mask, as models lay them out."""
    query = torch.randn(shape.samples, shape.queries, shape.heads, shape.size).transpose(1, 2)
    key = torch.randn(shape.samples, shape.key_heads, shape.keys, shape.size)
    grad = torch.randn(shape.samples, shape.queries, shape.heads, shape.value_size).transpose(1, 2)
    length = torch.tensor([shape.keys, shape.keys - 9][: shape.samples])[:, None]
    there = (torch.arange(shape.keys) < length)[:, None, None]
    mask: Tensor | None = None
    if shape.mask == "padding":
        mask = there
    elif shape.mask == "left":
        mask = there.flip(-1)
    elif shape.mask == "additive":
        mask = torch.randn(1, shape.heads, shape.queries, shape.keys).to(dtype)
    elif shape.mask == "lowest":
        mask = torch.zeros(there.shape).masked_fill(~there, torch.finfo(dtype).min).to(dtype)
    elif shape.mask == "closed":
        mask = there.expand(-1, 1, shape.queries, -1).clone()
        mask[0, 0, 3] = False
    elif shape.mask.startswith("all"):
        mask = torch.randn(1, shape.heads, shape.queries, shape.keys).to(dtype)
        mask[:, :, 5] = -math.inf if shape.mask == "all -inf" else torch.finfo(dtype).min
    query, key, grad = (x.to(DEVICE, dtype) for x in (query, key, grad))
    return query, key, grad, None if mask is None else mask.to(DEVICE)


def sums(shape: Shape, query: Tensor, key: Tensor, grad: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The log-sum-exp of every query and dV of every key, key by key as the formula has it."""
    group = shape.heads // shape.key_heads
    query, key, grad = query.double().cpu(), key.double().cpu().repeat_interleave(group, 1), grad.double().cpu()
    i, j = torch.arange(shape.queries)[:, None], torch.arange(shape.keys)
    seen = torch.ones(shape.queries, shape.keys, dtype=torch.bool)
    if shape.is_causal:
        seen &= j <= i
    if shape.window:
        seen &= i - j < shape.window
        if not shape.is_causal:
            seen &= j - i < shape.window
    scores = torch.einsum("bhid,bhjd->bhij", query, key) / math.sqrt(shape.size)
    if mask is not None:
        mask = mask.cpu()
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
    scores = scores.masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(-1)
    probabilities = torch.where(lse[..., None] == -math.inf, 0.0, scores.softmax(-1))
    dv = torch.einsum("bhij,bhid->bhjd", probabilities, grad)
    return lse.float().to(DEVICE), dv.unflatten(1, (shape.key_heads, group)).sum(2)


def error(shape: Shape, dtype: torch.dtype, blocks: Blocks | None) -> float:
    query, key, grad, mask = made(shape, dtype)
    lse, expected = sums(shape, query, key, grad, mask)
    found = values_gradient(
        query, key, grad, lse, mask=mask, is_causal=shape.is_causal, window=shape.window,
        scale=1 / math.sqrt(shape.size), blocks=blocks,
    )  # fmt: skip
    assert found.shape == expected.shape
    assert found.dtype == dtype
    return float((found.double().cpu() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_equals_sums_in_float64(shape: Shape, dtype: torch.dtype) -> None:
    assert error(shape, dtype, SMALL if DEVICE == "cpu" else None) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [64, 128, 256])
def test_blocks_of_every_head_size_give_the_same(size: int, dtype: torch.dtype) -> None:
    shape = Shape(heads=1, key_heads=1, queries=200, keys=200, size=size, value_size=size, is_causal=True)
    assert error(shape, dtype, blocks_for(size, dtype)) < TOLERANCE[dtype]


@settings(max_examples=25, deadline=None)
@given(
    queries=st.integers(1, 70), keys=st.integers(1, 70), size=st.integers(1, 40), is_causal=st.booleans(),
    window=st.integers(0, 40), rows=st.sampled_from([16, 32]), columns=st.sampled_from([16, 32]),
)  # fmt: skip
def test_any_length_size_and_window(
    queries: int, keys: int, size: int, is_causal: bool, window: int, rows: int, columns: int
) -> None:
    shape = Shape(queries=queries, keys=keys, size=size, value_size=size, is_causal=is_causal, window=window)
    blocks = Blocks(rows, columns, 4, 1)
    query, key, grad, mask = made(shape, torch.float32)
    lse, expected = sums(shape, query, key, grad, mask)
    found = values_gradient(
        query, key, grad, lse, is_causal=is_causal, window=window, scale=1 / math.sqrt(size), blocks=blocks
    )
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-4, atol=1e-5)


def test_every_element_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.empty

    def poisoned(*args: object, **kwargs: object) -> Tensor:
        made = plain(*args, **kwargs)  # type: ignore[call-overload]
        return made.fill_(math.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisoned)
    shape = Shape(samples=2, heads=4, queries=37, keys=45, size=20, value_size=12)
    query, key, grad, _ = made(shape, torch.float32)
    lse, _ = sums(shape, query, key, grad, None)
    assert torch.isfinite(values_gradient(query, key, grad, lse, scale=1 / math.sqrt(20), blocks=SMALL)).all()


@pytest.mark.parametrize("rows", [slice(0, 0), slice(47, 48), slice(0, 1), slice(17, 31)], ids=str)
@pytest.mark.parametrize("is_causal", [True, False])
def test_queries_without_a_gradient_are_passed_over_and_change_nothing(rows: slice, is_causal: bool) -> None:
    shape = Shape(heads=4, is_causal=is_causal)
    query, key, grad, _ = made(shape, torch.float32)
    alone = torch.zeros_like(grad)
    alone[:, :2, rows] = grad[:, :2, rows]
    lse, expected = sums(shape, query, key, alone, None)
    # Were they looked at, nan would spread from them.
    lse[:, 2:] = math.nan
    found = values_gradient(query, key, alone, lse, is_causal=is_causal, scale=0.25, blocks=SMALL)
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-4, atol=1e-6)


def test_a_gradient_of_nan_is_not_passed_over() -> None:
    shape = Shape()
    query, key, grad, _ = made(shape, torch.float32)
    lse, _ = sums(shape, query, key, grad, None)
    alone = torch.zeros_like(grad)
    alone[:, :, 5] = math.nan
    assert torch.isnan(values_gradient(query, key, alone, lse, scale=0.25, blocks=SMALL)).all()


def test_keys_that_no_query_sees_get_exactly_nothing() -> None:
    shape = Shape(samples=2, mask="padding")
    query, key, grad, mask = made(shape, torch.float32)
    lse, _ = sums(shape, query, key, grad, mask)
    found = values_gradient(query, key, grad, lse, mask=mask, scale=0.25, blocks=SMALL)
    assert found[1, :, -9:].eq(0).all()
    assert found[0, :, -9:].ne(0).all()


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(1, 1, 1, 16).expand(2, 3, 5, 16),
        torch.randn(2, 3, 16, 5).transpose(-1, -2),
        torch.randn(2, 3, 5, 18),
        torch.randn(2 * 3 * 5 * 16 + 1)[1:].view(2, 3, 5, 16),
    ],
    ids=["repeated", "places side by side", "rows of 72 bytes", "off by one"],
)
def test_what_the_copy_engine_does_not_take_is_copied(x: Tensor) -> None:
    found = _aligned(x)
    assert torch.equal(found, x)
    assert found.stride(-1) == 1
    assert found.data_ptr() % 16 == 0
    assert all(n > 0 and n * found.element_size() % 16 == 0 for n in found.stride()[:-1])


def test_what_the_copy_engine_takes_is_not_copied() -> None:
    x = torch.randn(2, 5, 3, 16).transpose(1, 2)
    assert _aligned(x) is x
