"""What explaining one token of a long text costs: a Llama of 1.2 billion random weights, batch 1, by length.

`python benchmarks/longcontext.py` times every contender at 512 to 65,536 tokens in interleaved rounds, measures the
memory above the weights, and writes benchmarks/results/longcontext.json: medians, and ratios to the forward pass and to
Gradient x Input. A contender that runs out of memory, or is not installed, is a result. Lengths may be measured in
several runs: each replaces its own rows.

`--million` explains 1,048,576 tokens by `ah+ln` alone. `--profile LENGTH` writes where the time of one explanation goes
and how long it must take at least (benchmarks/results/profile.json). `--tiny` takes a model that a CPU can carry.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig

import conserva
import contenders as ways
import lxt_attnlrp
import profiling
import timing

LLAMA = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
}
TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
}
LENGTHS, TINY_LENGTHS = tuple(2**i for i in range(9, 17)), (32, 64)
MILLION, TINY_MILLION = 2**20, 2**9
REPLAYED = 8192
"""Up to here Python's share of the time may be worth a recording."""
TARGET = 345
GI, DETACH_ONLY, OURS, EXACT = "GI", "detach only", "conserva ah+ln", "conserva exact"
OUR_CALLS: dict[str, dict[str, Any]] = {
    OURS: {"rules": "ah+ln"},
    EXACT: {"rules": "exact"},
    f"{EXACT}, with the ledger": {"rules": "exact", "ledger": True},
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--lengths", type=int, nargs="+", help="tokens; 512 to 65,536")
    options.add_argument("--rounds", type=int, help="15 at the most and 3 at the least, by length")
    options.add_argument("--only", action="append", metavar="NAME", help="this contender alone; may be given again")
    options.add_argument("--lxt", type=Path, metavar="PATH", help="a folder that has LXT's package `lxt`")
    options.add_argument("--million", action="store_true", help="1,048,576 tokens by ah+ln alone")
    options.add_argument("--profile", type=int, nargs="+", metavar="LENGTH", help="where the time of ah+ln goes")
    options.add_argument("--tflops", type=float, default=790, help="what matrix products reach here, measured")
    options.add_argument("--terabytes", type=float, default=4.3, help="what memory reaches in a second, measured")
    options.add_argument("--tiny", action="store_true", help="a tiny model, the default without a GPU")
    options.add_argument("--out", type=Path, default=timing.RESULTS, help="the folder of the results")
    given = options.parse_args()

    # Contenders take turns in one process: what one leaves in the allocator's cache must not split the next one's room.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    device = timing.default_device()
    given.tiny = given.tiny or device.type == "cpu"
    if given.tiny and given.out == timing.RESULTS:
        options.error("a tiny model says nothing about a large one: name a folder for its results with --out")
    model = llama(TINY if given.tiny else LLAMA, device)
    base = {"machine": timing.machine(device), "model": description(model)}
    if given.million:
        row = million(model, TINY_MILLION if given.tiny else MILLION, device)
        timing.write_rows(given.out / "million.json", {**base, "rows": [row]}, "tokens")
    elif given.profile:
        ceilings = profiling.Ceilings(given.tflops * 1e12, given.terabytes * 1e12)
        rows = [profiled(model, tokens, device, ceilings) for tokens in given.profile]
        timing.write_rows(given.out / "profile.json", {**base, "rows": rows}, "tokens")
    else:
        for tokens in given.lengths or (TINY_LENGTHS if given.tiny else LENGTHS):
            row = measured(model, tokens, given.rounds or rounds_for(tokens), device, given.only, given.lxt)
            # A contender that ran alone met no other: its time belongs to no table.
            if not given.only or given.out != timing.RESULTS:
                timing.write_rows(given.out / "longcontext.json", {**base, "rows": [row]}, "tokens")


def llama(shape: dict[str, int], device: torch.device) -> nn.Module:
    """Return a causal language model with random weights, in bfloat16 on a GPU."""
    config = LlamaConfig(
        **shape,
        tie_word_embeddings=True,
        max_position_embeddings=MILLION,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()  # type: ignore[no-any-return]


def description(model: nn.Module) -> dict[str, Any]:
    weights = sum(one.numel() for one in model.parameters())
    config: Any = model.config
    return {
        "weights": weights,
        "layers": config.num_hidden_layers,
        "heads": [config.num_attention_heads, config.num_key_value_heads, config.head_dim],
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }


def subject_of(model: nn.Module, frozen: nn.Module, tokens: int, device: torch.device) -> ways.Subject:
    """Return the explanation of one token after the last of `tokens` random ones."""
    config: Any = model.config
    ids = torch.randint(0, config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(tokens)).to(device)

    def scores(network: nn.Module, x: Tensor) -> Tensor:
        return network(inputs_embeds=x, use_cache=False, logits_to_keep=1).logits[:, -1]  # type: ignore[no-any-return]

    return ways.Subject(model, frozen, {"input_ids": ids}, scores, TARGET, (-1, TARGET))


def rounds_for(tokens: int) -> int:
    return max(3, min(15, 2**18 // tokens))


def measured(
    model: nn.Module, tokens: int, rounds: int, device: torch.device, only: list[str] | None, lxt: Path | None
) -> dict[str, Any]:
    """Return a row: every contender at one length."""
    print(f"{tokens:,} tokens, {rounds} rounds", file=sys.stderr)
    subject = subject_of(model, ways.without_gradients(model), tokens, device)
    contenders: dict[str, Callable[[], Tensor]] = {
        "forward": partial(ways.forward, subject),
        GI: partial(ways.gradient_times_input, subject),
        DETACH_ONLY: partial(ways.detach_only, subject),
        "captum": partial(ways.captum, subject),
        "autolrp": partial(ways.autolrp, subject),
        "LXT AttnLRP": lxt_attnlrp.contender(subject, lxt),
        f"{OURS}, recompute": partial(ways.single_call, subject, "ah+ln", checkpoint="recompute"),
    }
    fast = conserva.replaying(model) if tokens <= REPLAYED else None
    for name, how in OUR_CALLS.items():
        contenders[name] = ways.ours(subject, **how, fast=fast)
        if fast is not None:
            contenders[f"{name}, single calls"] = partial(ways.single_call, subject, **how)
    unknown = set(only or ()) - set(contenders)
    if unknown:
        sys.exit(f"--only {', '.join(map(repr, unknown))}: there is {', '.join(map(repr, contenders))}.")
    chosen = {name: one for name, one in contenders.items() if not only or name in only}
    with fast or contextlib.nullcontext():
        found = timing.compare(chosen, rounds, device)
    for name, how in OUR_CALLS.items():
        if tokens <= REPLAYED and "ms" in found.get(name, {}):
            # A replay's memory lies in its recording: what the pass itself takes is seen where it is not recorded.
            found[name]["gib"] = timing.peak_gib(partial(ways.single_call, subject, **how), device)
    timing.show(f"{tokens:,} tokens", found, GI)
    row: dict[str, Any] = {
        "tokens": tokens,
        "rounds": rounds,
        "contenders": found,
        "to forward": timing.ratios(found, "forward"),
        "to GI": timing.ratios(found, GI),
        "plans": {},
    }
    for name, how in OUR_CALLS.items():
        if "ms" in found.get(name, {}):
            row["plans"][name] = ways.relevance(subject, **how).plan
    if all("ms" in found.get(name, {}) for name in (OURS, DETACH_ONLY)):
        ours = ways.single_call(subject, "ah+ln")  # of the same tokens
        row["distance from detach only"] = distance(ours, contenders[DETACH_ONLY]())
    return row


def distance(a: Tensor, b: Tensor) -> float:
    """Return how far one set of scores is from another, as a share of the other's length."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def million(model: nn.Module, tokens: int, device: torch.device) -> dict[str, Any]:
    """Explain one very long text once, telling how far the forward pass is and when it is over."""
    subject = subject_of(model, model, tokens, device)
    ways.single_call(subject_of(model, model, min(tokens, 2048), device), "ah+ln")  # kernels are compiled
    start = time.perf_counter()

    def tell(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            print(f"  {time.perf_counter() - start:7.1f} s  {name}", file=sys.stderr)

        return hook

    layers = [(name, one) for name, one in model.named_modules() if type(one).__name__.endswith("DecoderLayer")]
    places = [*layers, ("the logits; then the backward pass", model.lm_head)]
    handles = [one.register_forward_pre_hook(tell(name)) for name, one in places]
    kept: dict[str, Any] = {}

    def run() -> None:
        kept["result"] = ways.relevance(subject, "ah+ln")

    took: dict[str, float] = {}

    def timed() -> None:
        took["ms"] = timing.milliseconds(run, device)

    try:
        gib = timing.peak_gib(timed, device)
    except torch.OutOfMemoryError:
        return {"tokens": tokens, "skipped": timing.OUT_OF_MEMORY}
    finally:
        for handle in handles:
            handle.remove()
    scores = kept["result"].scores()
    row = {"tokens": tokens, **took, "gib": gib, "plan": kept["result"].plan}
    row["finite"] = bool(torch.isfinite(scores).all())
    print(row)
    return row


def profiled(model: nn.Module, tokens: int, device: torch.device, ceilings: profiling.Ceilings) -> dict[str, Any]:
    """Return a row: where the time of one explanation goes, and its lower limit."""
    subject = subject_of(model, model, tokens, device)
    row = {"tokens": tokens, **profiling.where_time_goes(partial(ways.single_call, subject, "ah+ln"), device)}
    limit = profiling.lower_limit(model.config, tokens, ceilings)
    row["limit_ms"] = limit
    row["ceilings"] = {"tflops": ceilings.flops / 1e12, "terabytes a second": ceilings.bytes / 1e12}
    print(f"{tokens:,} tokens: {row['span_ms']:.2f} ms, at least {sum(limit.values()):.2f} ms")
    for name, one in row["groups_ms"].items():
        print(f"  {name:<22} {one:10.2f} ms   at least {limit.get(name, 0):10.2f} ms")
    return row


if __name__ == "__main__":
    main()
