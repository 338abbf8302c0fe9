"""Explanations a second: BERT-base with random weights, 64 texts of 128 tokens, in bfloat16 on a GPU.

`python benchmarks/throughput.py` times every contender in interleaved rounds, all with the same attention (`sdpa`, then
`eager`), and writes benchmarks/results/throughput.json. Then `conserva.explain` runs over many texts, of one length and
of mixed lengths, beside two plain loops of Gradient x Input: one that has its padded batches ready, the very ones that
`explain` makes, and one that starts from texts, as `explain` does. `--tiny` takes a model that a CPU can carry.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, BertConfig, PreTrainedTokenizerFast

import conserva
import contenders as ways
import timing
from conserva.explaining.explain import explain_with

TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
TARGET = 1
GI = "GI"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--batch", type=int, help="64; tiny: 4")
    options.add_argument("--tokens", type=int, help="128; tiny: 16")
    options.add_argument(
        "--texts", type=int, help="how many texts of mixed length, and a quarter of one length: 12,800; tiny: 40"
    )
    options.add_argument("--tiny", action="store_true", help="a tiny model, the default without a GPU")
    options.add_argument("--out", type=Path, default=timing.RESULTS, help="the folder of the results")
    given = options.parse_args()
    device = timing.default_device()
    given.tiny = given.tiny or device.type == "cpu"
    if given.tiny and given.out == timing.RESULTS:
        options.error("a tiny model says nothing about BERT-base: name a folder for its results with --out")
    batch, tokens, texts = given.batch, given.tokens, given.texts
    batch, tokens, texts = (batch or 4, tokens or 16, texts or 40) if given.tiny else (
        batch or 64, tokens or 128, texts or 12_800
    )  # fmt: skip
    record: dict[str, Any] = {
        "machine": timing.machine(device),
        "model": "tiny" if given.tiny else "BERT-base",
        "batch": batch,
        "tokens": tokens,
        "rounds": given.rounds,
    }
    for attention in ("sdpa", "eager"):
        model = bert(given.tiny, attention, device)
        with conserva.replaying(model) as fast:
            found = timing.compare(batches(model, batch, tokens, device, fast), given.rounds, device)
        per_second(found, batch)
        timing.show(f"{batch} x {tokens}, {attention}", found, GI)
        record[attention] = {"contenders": found, "to GI": timing.ratios(found, GI)}
    model, few = bert(given.tiny, "sdpa", device), min(given.rounds, 3)
    streams = {"alike": (texts // 4, (tokens, tokens)), "mixed": (texts, (6, max(7, tokens // 2)))}
    record["explain"] = {}
    for name, (count, lengths) in streams.items():
        record["explain"][name] = streamed(model, count, few, device, lengths)
        timing.write(given.out / "throughput.json", record)  # what is done stays, should the rest be stopped


def bert(tiny: bool, attention: str, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        config = BertConfig(**TINY if tiny else {})
        return AutoModelForSequenceClassification.from_config(  # type: ignore[no-any-return]
            config, dtype=dtype, attn_implementation=attention
        ).eval()


def subject_of(model: nn.Module, frozen: nn.Module, inputs: dict[str, Tensor]) -> ways.Subject:
    def scores(network: nn.Module, x: Tensor) -> Tensor:
        return network(inputs_embeds=x, attention_mask=inputs["attention_mask"]).logits  # type: ignore[no-any-return]

    return ways.Subject(model, frozen, inputs, scores, TARGET, TARGET)


def batches(
    model: nn.Module, batch: int, tokens: int, device: torch.device, fast: conserva.Replaying
) -> dict[str, Callable[[], Tensor]]:
    """Return the contenders on one batch without padding."""
    ids = torch.randint(1000, 30000, (batch, tokens), device=device)
    subject = subject_of(
        model, ways.without_gradients(model), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    )
    return {
        "forward": partial(ways.forward, subject),
        GI: partial(ways.gradient_times_input, subject),
        "captum": partial(ways.captum, subject),
        "autolrp": partial(ways.autolrp, subject),
        "conserva gi": ways.ours(subject, "gi", fast=fast),
        "conserva ah+ln": ways.ours(subject, "ah+ln", fast=fast),
        "conserva exact": ways.ours(subject, "exact", fast=fast),
        "conserva exact, with the ledger": ways.ours(subject, "exact", ledger=True, fast=fast),
        "conserva ah+ln, single calls": partial(ways.single_call, subject, "ah+ln"),
        "conserva exact, single calls": partial(ways.single_call, subject, "exact"),
        "conserva exact, with the ledger, single calls": partial(ways.single_call, subject, "exact", ledger=True),
    }


def per_second(found: dict[str, dict[str, Any]], explained: int) -> None:
    for one in found.values():
        if "ms" in one:
            one["a second"] = 1000 * explained / one["ms"]


class Recording(conserva.Text):
    """A text task that keeps the batches it was asked for."""

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__(model, tokenizer, "BERT")
        self.made: list[dict[str, Tensor]] = []

    def batch(self, encoded: Sequence[Any]) -> dict[str, Tensor]:
        self.made.append(super().batch(encoded))
        return self.made[-1]


def streamed(
    model: nn.Module, count: int, rounds: int, device: torch.device, tokens: tuple[int, int]
) -> dict[str, Any]:
    """Measure `conserva.explain` on texts of so many tokens, and plain loops over the same."""
    words = [f"w{i}" for i in range(2000)]
    draw = random.Random(0)
    shortest, longest = tokens[0] - 2, tokens[1] - 2  # less what BERT puts around a text
    texts = [" ".join(draw.choices(words, k=draw.randint(shortest, longest))) for _ in range(count)]
    tokenizer = word_tokenizer(words)
    frozen = ways.without_gradients(model)
    recording = Recording(model, tokenizer)
    conserva.explain(recording, texts, target=TARGET)
    ready = list(recording.made)
    task = conserva.Text(model, tokenizer, "BERT")
    explain = partial(conserva.explain, task, texts, target=TARGET)

    def explained(inputs: dict[str, Tensor]) -> list[list[float]]:
        return ways.gradient_times_input(subject_of(model, frozen, inputs)).tolist()  # type: ignore[no-any-return]

    def from_batches() -> list[list[list[float]]]:
        return [explained(inputs) for inputs in ready]

    sizes = [len(one["input_ids"]) for one in sorted(ready, key=lambda one: one["input_ids"].shape[1])]

    def from_texts() -> list[list[list[float]]]:
        ids = iter(sorted(tokenizer(texts)["input_ids"], key=len))
        parts = [{"input_ids": list(islice(ids, size))} for size in sizes]
        return [explained(dict(tokenizer.pad(one, return_tensors="pt").to(device))) for one in parts]

    contenders = {
        "GI, batches ready": from_batches,
        "GI, from texts": from_texts,
        **{f"conserva.explain {rules}": partial(explain, method=rules) for rules in ("ah+ln", "exact")},
        **{
            f"conserva.explain {rules}, nothing recorded": partial(not_recorded, task, texts, rules)
            for rules in ("ah+ln", "exact")
        },
    }
    found = timing.compare(contenders, rounds, device)
    per_second(found, count)
    timing.show(f"{count:,} texts", found, "GI, from texts")
    lengths = [len(tokenizer(text)["input_ids"]) for text in texts]
    return {
        "texts": count,
        "tokens": [min(lengths), max(lengths)],
        "batches": len(ready),
        "contenders": found,
        "to GI": timing.ratios(found, "GI, from texts"),
    }


def not_recorded(task: conserva.Text, texts: list[str], method: str) -> object:
    """Explain as `conserva.explain` does, without CUDA graphs."""
    return explain_with(None, task, texts, TARGET, method, truncate=False, batch_tokens=None)


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer that knows these words, and what BERT puts around them."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: i for i, word in enumerate([*special, *words])}
    known = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    known.pre_tokenizer = pre_tokenizers.Whitespace()
    known.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    return PreTrainedTokenizerFast(
        tokenizer_object=known, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


if __name__ == "__main__":
    main()
