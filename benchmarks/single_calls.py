"""What a single call of `conserva.relevance` costs, with nothing recorded, against Gradient x Input written by hand.

`python benchmarks/single_calls.py` times a Llama of 1.2 billion random weights in bfloat16 (batch 1; 128 to 4,096
tokens) and BERT-base in float32 (64 x 128, 8 x 128 and 1 x 32 tokens), `ah+ln` and `exact`, with and without the
ledger, in interleaved rounds, and writes benchmarks/results/single_calls.json. `--tiny` uses models for a CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, BertConfig

import contenders as ways
import timing
from longcontext import LLAMA, TINY, llama
from longcontext import subject_of as llama_subject
from throughput import TINY as TINY_BERT
from throughput import subject_of as bert_subject

LENGTHS, TINY_LENGTHS = (128, 512, 2048, 4096), (16, 32)
BATCHES, TINY_BATCHES = ((64, 128), (8, 128), (1, 32)), ((4, 16), (1, 8))
GI = "GI"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--tiny", action="store_true", help="tiny models, the default without a GPU")
    options.add_argument("--out", type=Path, default=timing.RESULTS, help="the folder of the results")
    given = options.parse_args()
    device = timing.default_device()
    given.tiny = given.tiny or device.type == "cpu"
    if given.tiny and given.out == timing.RESULTS:
        options.error("tiny models have other costs than large ones: choose a folder for the results with --out")
    record: dict[str, Any] = {"machine": timing.machine(device), "rounds": given.rounds, "rows": []}
    for model, size, subject in subjects(given.tiny, device):
        found = timing.compare(calls(subject), given.rounds, device)
        timing.show(f"{model}, {size}", found, GI)
        row = {"model": model, "size": size, "contenders": found, "to GI": timing.ratios(found, GI)}
        record["rows"].append({**row, "to forward": timing.ratios(found, "forward")})
        timing.write(given.out / "single_calls.json", record)  # what is measured is kept if the rest is interrupted


def subjects(tiny: bool, device: torch.device) -> Any:
    """Yield the name of a model, the size of its input, and what is explained."""
    model = llama(TINY if tiny else LLAMA, device)
    frozen = ways.without_gradients(model)
    for tokens in TINY_LENGTHS if tiny else LENGTHS:
        yield "Llama", f"1 x {tokens}", llama_subject(model, frozen, tokens, device)
    del model, frozen
    with device:
        torch.manual_seed(0)
        config = BertConfig(**TINY_BERT if tiny else {})
        model = AutoModelForSequenceClassification.from_config(config, attn_implementation="sdpa").eval()
    frozen = ways.without_gradients(model)
    for batch, tokens in TINY_BATCHES if tiny else BATCHES:
        ids = torch.randint(1000, 30000, (batch, tokens), device=device)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        yield "BERT-base", f"{batch} x {tokens}", bert_subject(model, frozen, inputs)


def calls(subject: ways.Subject) -> dict[str, Callable[[], Tensor]]:
    return {
        "forward": partial(ways.forward, subject),
        GI: partial(ways.gradient_times_input, subject),
        **{
            f"{rules}{', with the ledger' * ledger}": partial(ways.single_call, subject, rules, ledger)
            for rules in ("ah+ln", "exact")
            for ledger in (False, True)
        },
    }


if __name__ == "__main__":
    main()
