"""What attention's backward pass costs alone, and how exact the gradient of the values is.

`python benchmarks/attention.py` times causal attention on a GPU, forward pass excluded, in interleaved rounds: the full
backward pass of FlashAttention-2 and of cuDNN, the same where only the values want a gradient, and the value-only path
under the AH-rule. TFLOP/s count two matrix products, all that the gradient of the values needs, for every contender.
Then that gradient is held against float64 over a table of shapes, on fresh random inputs whose seed is kept.
Written is benchmarks/results/attention.json. Without a GPU the shapes are small, and torch's one backend stands for
both.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import timing
from conserva.engine.operations import value_only as ours

SHAPES = {"32 heads of 128": (32, 32, 128), "32 heads of 64, 8 for keys": (32, 8, 64)}
LENGTHS, SMALL_LENGTHS = tuple(2**i for i in range(11, 17)), (64, 128)
BACKENDS = {"FlashAttention-2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
VALUE_ONLY = "value-only"
LEFT_TO_TORCH = "left to torch"


ours.SHORT.clear()  # the kernel itself is looked at, also where torch's own would be taken


class LeftToTorch(Exception):  # noqa: N818 - a finding
    """The value-only path does not serve these tensors: the AH-rule detaches queries and keys instead."""


def value_only(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Attend by the path that the AH-rule takes."""
    found, _ = ours.attend(query, key, value, mask, is_causal)
    if found is None:
        raise LeftToTorch
    return found


def by_torch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal, enable_gqa=grouped)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--lengths", type=int, nargs="+", help="tokens; 2,048 to 65,536 on a GPU")
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--seed", type=int, default=time.time_ns() % 2**31, help="of the accuracy; the clock's")
    options.add_argument("--out", type=Path, default=timing.RESULTS, help="the folder of the results")
    given = options.parse_args()
    device = timing.default_device()
    if device.type == "cpu" and given.out == timing.RESULTS:
        options.error("small shapes on a CPU say nothing about a GPU: name a folder for their results with --out")
    lengths = given.lengths or (LENGTHS if device.type == "cuda" else SMALL_LENGTHS)
    record = {
        "machine": timing.machine(device),
        "seed": given.seed,
        "speed": [speed(name, tokens, given.rounds, device) for name in SHAPES for tokens in lengths],
        "accuracy": accuracy(given.seed, device),
    }
    timing.write(given.out / "attention.json", record)


def speed(shape: str, tokens: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Return a row: the backward pass of every contender at one length, and its forward pass beside it."""
    heads, key_heads, size = SHAPES[shape]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    query, grad = (torch.randn(1, heads, tokens, size, device=device, dtype=dtype) for _ in range(2))
    key, value = (torch.randn(1, key_heads, tokens, size, device=device, dtype=dtype) for _ in range(2))
    backends = BACKENDS if device.type == "cuda" else {"torch": SDPBackend.FLASH_ATTENTION}
    forwards: dict[str, Callable[[], tuple[Tensor, list[Tensor]]]] = {}
    for name, backend in backends.items():
        forwards[name] = run_by(by_torch, backend, (query, key, value), everything=True)
        forwards[f"{name}, detach only"] = run_by(by_torch, backend, (query, key, value), everything=False)
    forwards[VALUE_ONLY] = run_by(value_only, None, (query, key, value), everything=False)

    found = timing.compare({name: backward_of(run, grad) for name, run in forwards.items()}, rounds, device)
    flops = 2 * tokens**2 * size * heads  # two causal products: half of 2 x 2 n^2 d each head
    for name, one in found.items():
        if "ms" in one:
            one["tflops"] = flops / one["ms"] / 1e9
            one["forward_ms"] = sorted(timing.milliseconds(forwards[name], device) for _ in range(3))[1]
    base = next(iter(backends))
    timing.show(f"{shape}, {tokens:,} tokens", found, base)
    return {"shape": shape, "tokens": tokens, "contenders": found, f"to {base}": timing.ratios(found, base)}


def run_by(
    path: Callable[..., Tensor], backend: SDPBackend | None, inputs: tuple[Tensor, ...], everything: bool
) -> Callable[[], tuple[Tensor, list[Tensor]]]:
    """Return a causal forward pass, which gives its output and the tensors that want a gradient."""

    def run() -> tuple[Tensor, list[Tensor]]:
        query, key, value = (one.detach() for one in inputs)
        wanted = [query, key, value] if everything else [value]
        for one in wanted:
            one.requires_grad_()
        if backend is None:
            return path(query, key, value, is_causal=True), wanted
        with sdpa_kernel(backend):
            return path(query, key, value, is_causal=True), wanted

    return run


def backward_of(run: Callable[[], tuple[Tensor, list[Tensor]]], grad: Tensor) -> Callable[[], object]:
    """Return a backward pass that can be repeated; the forward pass is run when it is first asked for."""
    made: list[tuple[Tensor, list[Tensor]]] = []

    def backward() -> object:
        if not made:
            made.append(run())
        output, wanted = made[0]
        return torch.autograd.grad(output, wanted, grad, retain_graph=True)

    return backward


@dataclass(frozen=True)
class Case:
    """A shape of attention: samples x heads x tokens x size, and what a query sees."""

    name: str
    heads: int = 8
    key_heads: int = 8
    queries: int = 256
    keys: int = 256
    size: int = 64
    sees: str = "all"
    samples: int = 2

    def mask(self, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Tensor | None:
        places = torch.arange(self.keys, device=device)
        rows = torch.arange(self.queries, device=device)[:, None]
        if self.sees == "padding":
            lengths = torch.tensor([self.keys - 7 - 31 * i for i in range(self.samples)], device=device)
            return (places < lengths[:, None])[:, None, None, :].expand(-1, 1, self.queries, -1)
        if self.sees == "added numbers":
            shape = (self.samples, self.heads, self.queries, self.keys)
            return torch.randn(shape, generator=generator, device=device).to(dtype)
        if self.sees == "a window":
            return ((places <= rows) & (places > rows - 64))[None, None]
        return None


CASES = (
    *(Case(f"causal, {size} a head", size=size, sees="causal") for size in (16, 32, 64, 80, 128, 256)),
    *(Case(f"full, {size} a head", size=size) for size in (16, 64, 128, 256)),
    *(Case(sees, sees=sees) for sees in ("padding", "added numbers", "a window")),
    Case("grouped heads, causal", heads=32, key_heads=8, sees="causal"),
    Case("one head for all keys, causal", key_heads=1, sees="causal"),
    Case("grouped heads, padding", heads=16, key_heads=4, sees="padding"),
    *(Case(f"length {many}, causal", queries=many, keys=many, sees="causal") for many in (1, 17, 127, 509, 1021)),
    Case("odd length and size, full", queries=131, keys=131, size=40),
    Case("cross attention, 100 queries of 333", queries=100, keys=333),
    Case("cross attention, 333 queries of 100", queries=333, keys=100),
    Case("cross attention, padding", queries=64, keys=301, sees="padding"),
    Case("longer, causal", queries=4096, keys=4096, size=128, heads=4, key_heads=4, samples=1, sees="causal"),
)  # fmt: skip


def accuracy(seed: int, device: torch.device) -> list[dict[str, Any]]:
    """Return the relative error of dV for every case and dtype, ours and that of torch's own choice."""
    print(f"accuracy, seed {seed}", file=sys.stderr)
    small = device.type == "cpu"
    dtypes = (torch.float32,) if small else (torch.float16, torch.bfloat16, torch.float32)
    cases = [replace(case, queries=min(case.queries, 160), keys=min(case.keys, 160)) for case in CASES]
    pairs = list(itertools.product(cases if small else CASES, dtypes))
    # Every case is compiled anew, which takes longer than its run: several processes share that.
    with ProcessPoolExecutor(1 if small else 8, mp_context=multiprocessing.get_context("spawn")) as workers:
        found = list(workers.map(errors, *zip(*pairs, strict=True), itertools.repeat(seed), itertools.repeat(device)))
    rows = [
        {"case": case.name, "dtype": str(dtype).removeprefix("torch."), **one}
        for (case, dtype), one in zip(pairs, found, strict=True)
    ]
    for row in rows:
        print(f"  {row['case']:<40} {row['dtype']:<9} {shown(row['value-only'])} torch {shown(row['torch'])}")
    return rows


def errors(case: Case, dtype: torch.dtype, seed: int, device: torch.device) -> dict[str, Any]:
    """Return the relative error of one case, or why there is none. Memory that nobody wrote to holds nan."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    generator = torch.Generator(device).manual_seed(seed)

    def drawn(heads: int, places: int) -> Tensor:
        shape = (case.samples, heads, places, case.size)
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    query, grad = drawn(case.heads, case.queries), drawn(case.heads, case.queries)
    key, value = drawn(case.key_heads, case.keys), drawn(case.key_heads, case.keys)
    mask, causal = case.mask(device, dtype, generator), case.sees == "causal"
    expected = by_definition(query, key, grad, mask, causal)
    found: dict[str, Any] = {}
    for name, path in ((VALUE_ONLY, value_only), ("torch", by_torch)):
        leaf = value.detach().requires_grad_()
        try:
            [got] = torch.autograd.grad(path(query, key, leaf, mask, causal), leaf, grad)
        except LeftToTorch:
            found[name] = LEFT_TO_TORCH
            continue
        except Exception as error:  # a shape that a path refuses is a result
            found[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            continue
        found[name] = float((got.double() - expected).norm() / expected.norm())
    return found


def by_definition(query: Tensor, key: Tensor, grad: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Return dV = P^T dO in float64, summed over the heads that share a value."""
    group = query.shape[1] // key.shape[1]
    q, g = query.double(), grad.double()
    scores = q @ key.double().repeat_interleave(group, 1).transpose(-1, -2) / math.sqrt(query.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
    return (scores.softmax(-1).transpose(-1, -2) @ g).unflatten(1, (key.shape[1], group)).sum(2)


def shown(error: Any) -> str:
    return f"{error:.1e}" if isinstance(error, float) else str(error)


if __name__ == "__main__":
    main()
