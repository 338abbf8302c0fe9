"""Peak memory of commands that read many rows: it should not grow with their number.

Writes benchmarks/results/rows.json. Each command runs in a process of its own, on a tiny model with random weights, and
its peak is what the system reports for that process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "rows.json"
WORDS = [
    "a",
    "an",
    "the",
    "film",
    "plot",
    "joy",
    "bore",
    "dull",
    "witty",
    "long",
    "short",
    "loud",
    "grey",
    "warm",
    "cold",
    "best",
    "worst",
    "fine",
    "odd",
    "flat",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--commands", nargs="+", default=["explain", "explain-html", "evaluate", "evaluate-out"])
    given = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder))
        for rows in given.rows:
            texts = Path(folder) / f"{rows}.txt"
            rng = random.Random(0)
            lines = [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) for _ in range(rows)]
            texts.write_text("\n".join(lines), encoding="utf-8")
            table = Path(folder) / f"{rows}.csv"
            table.write_text("text\n" + "\n".join(lines), encoding="utf-8")
            for command in given.commands:
                arguments = arguments_of(command, model, texts, table, Path(folder) / f"out-{rows}")
                peak = peak_of(arguments)
                found.setdefault(command, {})[str(rows)] = round(peak / 2**20, 1)
                print(f"{command:<14}{rows:>9,} rows {peak / 2**20:>8.1f} MiB", flush=True)
    RESULTS.write_text(json.dumps({"unit": "MiB", "peak": found}, indent=2) + "\n", encoding="utf-8")


def arguments_of(command: str, model: Path, texts: Path, table: Path, out: Path) -> list[str]:
    if command.startswith("explain"):
        page = ["--html", str(out) + ".html"] if command == "explain-html" else []
        return ["explain", "--file", str(texts), "--model", str(model), "--json", *page]
    how = ["--methods", "gi,random", "--random-seeds", "1", "--steps", "2", "--no-reference", "--json"]
    kept = ["--out", str(out)] if command == "evaluate-out" else []
    return ["evaluate", "--data", str(table), "--model", str(model), *how, *kept]


def tiny_model(folder: Path) -> Path:
    """Save a classifier that is as small as a BERT can be, with a tokenizer of the words above."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=64, **names)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    for one in (BertForSequenceClassification(config), tokenizer):
        one.save_pretrained(folder / "model")
    return folder / "model"


def peak_of(arguments: list[str]) -> float:
    """Return the largest resident memory of a process that runs a command, in bytes."""
    process = os.fork()
    if not process:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.execv(sys.executable, [sys.executable, "-m", "conserva.cli", *arguments])
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(f"conserva {' '.join(arguments)} ended with {status}")
    return usage.ru_maxrss * 1024.0


if __name__ == "__main__":
    main()
