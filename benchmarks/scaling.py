"""How the cost of an explanation grows with size, beside the forward pass and Gradient x Input.

`python benchmarks/scaling.py` makes three sweeps: over the tokens of a text (128 to 262,144; a Llama of random
weights), the size of a batch (1 to 256 texts of 128 tokens; BERT-base in float32) and the number of layers (2 to 48;
the Llama, 2,048 tokens). Contenders take turns; nothing is recorded. It writes benchmarks/results/scaling.json:
medians, peak memory above the weights, and exponents, the slopes of log cost against log size over the upper half of
the sizes.

`--sweep NAME` makes one sweep, which replaces its own part of the file. `--tiny` takes models that a CPU can carry.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import contenders as ways
import timing
from longcontext import LLAMA, TINY, description, llama
from longcontext import subject_of as llama_subject
from throughput import bert
from throughput import subject_of as bert_subject

FORWARD, GI = "forward", "GI"
OURS: dict[str, dict[str, Any]] = {
    "ah+ln": {"rules": "ah+ln"},
    "exact, with the ledger": {"rules": "exact", "ledger": True},
}
SIZES = {
    "tokens": tuple(2**i for i in range(7, 19)),
    "batch": tuple(2**i for i in range(9)),
    "layers": (2, 4, 8, 16, 24, 48),
}
TINY_SIZES = {"tokens": (16, 32, 64, 128), "batch": (1, 2, 4, 8), "layers": (1, 2, 4, 8)}
TEXT, TINY_TEXT = 128, 16
"""Tokens of each text of a batch."""
DEEP_TEXT, TINY_DEEP_TEXT = 2048, 32
"""Tokens of the text where layers are counted."""
MOST_ROUNDS = 9

Sweep = tuple[str, Callable[[int], int], Callable[[int], ways.Subject]]
"""What stays the same; a size -> how many tokens the model reads; a size -> what is explained."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sweep", action="append", choices=SIZES, help="this sweep alone; may be given again")
    options.add_argument("--rounds", type=int, help=f"{MOST_ROUNDS} to 0, by size; 0: what is tried once is measured")
    options.add_argument("--tiny", action="store_true", help="tiny models, the default without a GPU")
    options.add_argument("--out", type=Path, default=timing.RESULTS, help="the folder of the results")
    given = options.parse_args()
    # As in longcontext.py: what one contender leaves in the allocator's cache must not split the next one's room.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    device = timing.default_device()
    given.tiny = given.tiny or device.type == "cpu"
    if given.tiny and given.out == timing.RESULTS:
        options.error("tiny models have other costs than large ones: choose a folder for the results with --out")
    for sweep in given.sweep or SIZES:
        for part in swept(sweep, given.tiny, given.rounds, device):
            write_sweep(given.out / "scaling.json", timing.machine(device), sweep, part)
        timing.release(device)


def swept(sweep: str, tiny: bool, rounds: int | None, device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield what is known of a sweep after each of its sizes: what is measured is kept if the rest is interrupted."""
    sizes = (TINY_SIZES if tiny else SIZES)[sweep]
    what, tokens_of, subject_of = SWEEPS[sweep](tiny, device)
    rows: list[dict[str, Any]] = []
    for size in sizes:
        few = rounds_for(tokens_of(size)) if rounds is None else rounds
        is_too_large = bool(rows) and rows[-1]["contenders"][GI].get("skipped") == timing.OUT_OF_MEMORY
        found, plans = measured(subject_of(size), few, device, is_too_large)
        timing.release(device)
        timing.show(f"{sweep}: {size:,}, {few} rounds", found, FORWARD)
        times = {f"to {base}": timing.ratios(found, base) for base in (FORWARD, GI)}
        rows.append({"size": size, "rounds": few, "contenders": found, **times, "plans": plans})
        yield {"what": what, "rows": rows, "exponents": exponents(rows, sizes)}


def rounds_for(tokens: int) -> int:
    """Return few rounds for many tokens, and none where one run takes seconds."""
    return min(MOST_ROUNDS, 2**16 // tokens)


def by_tokens(tiny: bool, device: torch.device) -> Sweep:
    model = llama(TINY if tiny else LLAMA, device)
    frozen = ways.without_gradients(model)
    shape = description(model)
    what = f"a Llama of {shape['layers']} layers in {shape['dtype']}, one text"
    return what, lambda size: size, lambda size: llama_subject(model, frozen, size, device)


def by_batch(tiny: bool, device: torch.device) -> Sweep:
    model = bert(tiny, "sdpa", device).float()
    frozen = ways.without_gradients(model)
    tokens = TINY_TEXT if tiny else TEXT

    def subject_of(size: int) -> ways.Subject:
        ids = torch.randint(1000, 30000, (size, tokens), device=device)
        return bert_subject(model, frozen, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    return f"BERT{'' if tiny else '-base'} in float32, texts of {tokens} tokens", lambda size: size * tokens, subject_of


def by_layers(tiny: bool, device: torch.device) -> Sweep:
    tokens = TINY_DEEP_TEXT if tiny else DEEP_TEXT

    def subject_of(size: int) -> ways.Subject:
        model = llama({**(TINY if tiny else LLAMA), "num_hidden_layers": size}, device)  # goes with the subject
        return llama_subject(model, ways.without_gradients(model), tokens, device)

    return f"a Llama, one text of {tokens:,} tokens", lambda _: tokens, subject_of


SWEEPS = {"tokens": by_tokens, "batch": by_batch, "layers": by_layers}


def measured(
    subject: ways.Subject, rounds: int, device: torch.device, is_too_large: bool
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return what each contender costs at one size, and by which plan ours ran.

    Where GI did not fit at a smaller size, the forward pass and `ah+ln` run alone.
    """
    plans: dict[str, str] = {}
    contenders: dict[str, Callable[[], Tensor]] = {
        FORWARD: partial(ways.forward, subject),
        GI: partial(ways.gradient_times_input, subject),
        **{name: partial(explained, subject, name, plans) for name in OURS},
    }
    if is_too_large:
        contenders = {name: contenders[name] for name in (FORWARD, "ah+ln")}
    if rounds:
        found = timing.compare(contenders, rounds, device)
    else:
        found = {name: once(contender, device) for name, contender in contenders.items()}
    return {**found, **({GI: {"skipped": timing.OUT_OF_MEMORY}} if is_too_large else {})}, plans


def explained(subject: ways.Subject, name: str, plans: dict[str, str]) -> Tensor:
    """Explain by a single call, and note its plan."""
    result = ways.relevance(subject, **OURS[name])
    plans[name] = result.plan
    return result.scores().detach()


def once(contender: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Run a contender a single time, for its time and its peak memory; smaller sizes have warmed it up."""
    took: list[float] = []
    try:
        gib = timing.peak_gib(lambda: took.append(timing.milliseconds(contender, device)), device)
        return {"ms": took[-1], "fastest_ms": took[-1], "slowest_ms": took[-1], "gib": gib}
    except torch.OutOfMemoryError:
        reason = timing.OUT_OF_MEMORY
    except Exception as error:  # as in timing.py: a contender that fails is a result
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
    timing.release(device)
    return {"skipped": reason}


def exponents(rows: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return the exponents of each contender's time and memory, and the first and last size that they are made from.

    Only the upper half of the sizes counts: below it Python takes the time.
    """
    upper = sizes[len(sizes) // 2 :]
    found: dict[str, dict[str, Any]] = {}
    for name in (FORWARD, GI, *OURS):
        costs = {row["size"]: row["contenders"].get(name, {}) for row in rows if row["size"] in upper}
        times = {size: one["ms"] for size, one in costs.items() if "ms" in one}
        memory = {size: costs[size]["gib"] for size in times if costs[size]["gib"]}
        if len(times) > 1:
            found[name] = {"sizes": [min(times), max(times)], "time": slope(times)}
            if memory.keys() == times.keys():
                found[name]["memory"] = slope(memory)
    return found


def slope(costs: Mapping[int, float]) -> float:
    """Return the slope of log cost against log size by least squares."""
    return statistics.linear_regression([log(size) for size in costs], [log(cost) for cost in costs.values()]).slope


def write_sweep(path: Path, machine: dict[str, Any], sweep: str, part: dict[str, Any]) -> None:
    """Write one sweep, which takes its own place in the file; sweeps of another machine are dropped."""
    sweeps = {}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if all(before["machine"].get(name) == machine[name] for name in ("device", "torch")):
            sweeps = before["sweeps"]
    sweeps[sweep] = part
    timing.write(path, {"machine": machine, "sweeps": {name: sweeps[name] for name in SIZES if name in sweeps}})


if __name__ == "__main__":
    main()
