"""Where the time of one call goes, kernel by kernel, and how long an explanation of a Llama must take at least."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import timing

ATTENTION_FORWARD, ATTENTION_BACKWARD = "attention forward", "attention backward"
PRODUCTS, ELEMENTWISE, OTHER, IDLE = "matrix products", "elementwise", "other", "idle"

GROUPS = (
    (ATTENTION_BACKWARD, r"values_gradient|_prepare|flash_bwd|flash.*backward|bprop|fmha.*(bwd|backward|cutlassB)|"
                         r"attention.*backward"),
    (ATTENTION_FORWARD, r"flash_fwd|flash|fprop|fmha|attention"),
    (PRODUCTS, r"gemm|nvjet|cutlass|cublas|xmma|gemv|splitk|aten::(mm|bmm|addmm|matmul|linear|baddbmm)$"),
    (ELEMENTWISE, r"elementwise|triton|gate_gradients|reduce|cat|copy|softmax|norm|index|gather|embedding|fill|mul|"
                  r"add|silu|pow|mean|rsqrt|neg|cos|sin|sum|div|sub|arange|memcpy|memset"),
)  # fmt: skip
"""A group has the kernels whose names match it and none before it."""


@dataclass(frozen=True)
class Ceilings:
    """What a machine reaches: floating-point operations of matrix products, and bytes of memory, in a second."""

    flops: float
    bytes: float


def group_of(kernel: str) -> str:
    return next((group for group, names in GROUPS if re.search(names, kernel, re.IGNORECASE)), OTHER)


def where_time_goes(contender: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Return the milliseconds of each group of kernels in one call, and those in which nothing ran.

    The span is that of the call without the profiler, since the profiler slows what launches kernels: what the kernels
    leave of it was idle. On a CPU operations stand for the kernels, each with the time it spends itself.
    """
    for _ in range(2):
        contender()
    span = sorted(timing.milliseconds(contender, device) for _ in range(3))[1]
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as seen:
        contender()
        if on_gpu:
            torch.cuda.synchronize(device)
    kernels = list(_kernels(seen, on_gpu))
    groups = dict.fromkeys((ATTENTION_FORWARD, ATTENTION_BACKWARD, PRODUCTS, ELEMENTWISE, OTHER), 0.0)
    names: dict[str, float] = {}
    for one in kernels:
        groups[group_of(one.name)] += one.took / 1000
        names[one.name] = names.get(one.name, 0.0) + one.took / 1000
    groups[IDLE] = max(0.0, span - covered((one.start, one.end) for one in kernels) / 1000)
    longest = sorted(names.items(), key=lambda pair: -pair[1])[:20]
    return {
        "span_ms": span,
        "kernels": len(kernels),
        "groups_ms": groups,
        "longest_ms": [{"kernel": name[:160], "group": group_of(name), "ms": took} for name, took in longest],
    }


@dataclass(frozen=True)
class Kernel:
    """What ran, from when to when, and how long of that it did something itself; in microseconds."""

    name: str
    start: float
    end: float
    took: float


def _kernels(seen: profile, on_gpu: bool) -> Iterator[Kernel]:
    for one in seen.events() or ():
        start, end = one.time_range.start, one.time_range.end
        if on_gpu and one.device_type == DeviceType.CUDA and not one.is_user_annotation:
            yield Kernel(one.name, start, end, end - start)
        elif not on_gpu and one.name.startswith("aten::"):
            yield Kernel(one.name, start, end, one.self_cpu_time_total)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of a union of spans: what runs side by side counts once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def lower_limit(config: Any, tokens: int, ceilings: Ceilings, width: int = 2) -> dict[str, float]:
    """Return the milliseconds that an `ah+ln` explanation of a Llama's last token takes at least, by group.

    Every layer runs at every token, forward and backward. A matrix product takes what its operations or its bytes take
    at the ceiling, whichever is more; everything else is fused, reads its inputs once and writes its outputs once.
    Under AH neither queries nor keys carry a gradient, so their projections have no backward pass, and attention's
    takes two matrix products. Parameters have no gradient.
    """
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    forward = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
    forward += [(hidden, inner), (hidden, inner), (inner, hidden)]
    backward = [pair for i, pair in enumerate(forward) if i not in (0, 1)]

    def roofline(flops: float, values: float) -> float:
        return max(flops / ceilings.flops, values * width / ceilings.bytes)

    products = sum(
        roofline(2 * tokens * a * b, tokens * (a + b) + a * b) for pairs in (forward, backward) for a, b in pairs
    )
    attention = roofline(2 * tokens**2 * queries, tokens * 2 * (queries + keys))  # causal: two products, half of each
    # Norm, rotation of queries and keys, sum, norm, gate, sum; then gate, two norms, two sums, of the gradient.
    moved = (2 * hidden + 2 * (queries + keys) + 3 * hidden + 2 * hidden + 3 * inner + 3 * hidden) + (
        5 * inner + 2 * 2 * hidden + 2 * 3 * hidden
    )
    seconds = {
        ATTENTION_FORWARD: layers * attention,
        ATTENTION_BACKWARD: layers * attention,
        PRODUCTS: layers * products,
        ELEMENTWISE: layers * tokens * moved * width / ceilings.bytes,
    }
    return {group: 1000 * one for group, one in seconds.items()}
