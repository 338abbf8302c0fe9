"""What CUDA graphs save inside one call of `conserva.explain`, and in a loop inside `conserva.replaying`.

`python benchmarks/replaying.py` prints one JSON object. On a GPU: `explain` of 6,400 texts by BERT-base with random
weights, of one length (64 x 128 tokens a batch) and of mixed lengths, with and without recordings; then a Llama of 1.2
billion random weights in bfloat16, at 512 tokens in a loop inside `replaying`, and by single calls at 512 and 4,096
tokens, beside Gradient x Input. Contenders take turns. It takes about four minutes on an H200. Without a GPU, or with
`--tiny`, models are tiny and nothing is recorded on a CPU: that only shows that it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import conserva
import contenders as ways
import longcontext
import throughput
import timing
from conserva.explaining.explain import explain_with

RULES = ("ah+ln", "exact")
GI = "GI"
WORDS = [f"w{i}" for i in range(2000)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--texts", type=int, help="6,400; tiny: 24")
    options.add_argument("--rounds", type=int, default=20, help="of the loops; those of many texts have 2")
    options.add_argument("--tiny", action="store_true", help="tiny models, the default without a GPU")
    given = options.parse_args()
    device = timing.default_device()
    tiny = given.tiny or device.type == "cpu"
    found: dict[str, Any] = {"machine": timing.machine(device), "tiny": tiny}
    count, batch_tokens, longest = (given.texts or 24, 32, 16) if tiny else (given.texts or 6_400, 64 * 128, 128)
    bert = throughput.bert(tiny, "sdpa", device)
    lengths = {"of one length": (longest, longest), "of mixed lengths": (6, longest)}
    found["explain"] = {
        name: many_texts(bert, count, span, batch_tokens, device, 1 if tiny else 2) for name, span in lengths.items()
    }
    del bert
    timing.release(device)
    llama = longcontext.llama(longcontext.TINY if tiny else longcontext.LLAMA, device)
    found["relevance"] = {
        str(tokens): single_input(llama, tokens, device, given.rounds, is_replayed)
        for tokens, is_replayed in (((32, True), (64, False)) if tiny else ((512, True), (4096, False)))
    }
    print(json.dumps(found, indent=2))


def many_texts(
    model: nn.Module, count: int, tokens: tuple[int, int], batch_tokens: int, device: torch.device, rounds: int
) -> dict[str, Any]:
    """Measure `explain` with recordings and without, beside a loop of Gradient x Input over the same batches."""
    draw = random.Random(0)
    shortest, longest = tokens[0] - 2, tokens[1] - 2  # less what BERT puts around a text
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(shortest, longest))) for _ in range(count)]
    tokenizer, frozen = throughput.word_tokenizer(WORDS), ways.without_gradients(model)
    task = throughput.Recording(model, tokenizer)

    def plain(rules: str) -> Any:
        return explain_with(None, task, texts, throughput.TARGET, rules, truncate=False, batch_tokens=batch_tokens)

    expected = plain(RULES[0])
    ready = list(task.made)
    task = conserva.Text(model, tokenizer, "BERT")  # type: ignore[assignment]
    recorded = partial(conserva.explain, task, texts, throughput.TARGET, batch_tokens=batch_tokens)
    are_same = recorded(method=RULES[0]) == expected

    def gradients() -> list[Any]:
        return [ways.gradient_times_input(throughput.subject_of(model, frozen, inputs)).tolist() for inputs in ready]

    contenders: dict[str, Callable[[], object]] = {f"{GI}, batches ready": gradients}
    for rules in RULES:
        contenders[f"explain {rules}"] = partial(recorded, method=rules)
        contenders[f"explain {rules}, nothing recorded"] = partial(plain, rules)
    found = timing.compare(contenders, rounds, device)
    throughput.per_second(found, count)
    ratios = {
        rules: found[f"explain {rules}"]["ms"] / found[f"explain {rules}, nothing recorded"]["ms"] for rules in RULES
    }
    timing.show(f"{count:,} texts of {tokens[0]} to {tokens[1]} tokens", found, f"{GI}, batches ready", sys.stderr)
    return {
        "texts": count,
        "batches": len(ready),
        "shapes": len({one["input_ids"].shape for one in ready}),
        "the same to the bit": are_same,
        "contenders": found,
        "to nothing recorded": ratios,
        "to GI": timing.ratios(found, f"{GI}, batches ready"),
    }


def single_input(model: nn.Module, tokens: int, device: torch.device, rounds: int, is_replayed: bool) -> dict[str, Any]:
    """Measure single calls, and where asked for a loop inside `replaying`, beside Gradient x Input."""
    subject = longcontext.subject_of(model, ways.without_gradients(model), tokens, device)
    contenders: dict[str, Callable[[], object]] = {
        "forward": partial(ways.forward, subject),
        GI: partial(ways.gradient_times_input, subject),
        "ah+ln": partial(ways.single_call, subject, "ah+ln"),
        "exact, with the ledger": partial(ways.single_call, subject, "exact", ledger=True),
    }
    with conserva.replaying(model) if is_replayed else contextlib.nullcontext() as fast:
        if fast is not None:
            contenders["ah+ln, replaying"] = ways.ours(subject, "ah+ln", fast=fast)
            contenders["exact, with the ledger, replaying"] = ways.ours(subject, "exact", ledger=True, fast=fast)
        found = timing.compare(contenders, rounds, device)
    timing.show(f"{tokens:,} tokens", found, GI, sys.stderr)
    return {"contenders": found, "to GI": timing.ratios(found, GI)}


if __name__ == "__main__":
    main()
