"""What a sentence costs in an evaluation of 100, 1,000 and 10,000 of them: it should cost the same.

`python benchmarks/evaluate_scale.py` runs `conserva.evaluate` by six methods on the bundled model, on the GPU if there
is one, and writes benchmarks/results/evaluate_scale.json: milliseconds per sentence at each size, the peak of the GPU's
memory above the weights, and the ratio of the largest size to the smallest. The journal is a temporary file.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import conserva
import timing
from evaluate import SENTENCES

METHODS = ("gi", "ah+ln", "exact", "attnlrp", "rollout", "gae")
SIZES = (100, 1_000, 10_000)


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of sentences; 100, 1,000, 10,000")
    options.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="runs of a size, unless together they have more sentences than the largest",
    )
    options.add_argument("--out", type=Path, default=timing.RESULTS / "evaluate_scale.json", help="the file to write")
    given = options.parse_args(arguments)
    sizes = sorted(set(given.sizes))
    if sizes[0] < 1 or given.rounds < 1:
        options.error("--sizes and --rounds are 1 or more")

    device = timing.default_device()
    task = conserva.load(device=device)
    every = sentences(sizes[-1])
    evaluated(task, every[: sizes[0]])  # to warm up
    record: dict[str, Any] = {
        "machine": timing.machine(device),
        "model": "sentiment",
        "methods": list(METHODS),
        "rows": [],
    }
    for size in sizes:
        rounds = min(given.rounds, sizes[-1] // size)
        row = {"sentences": size, **measured(task, every[:size], rounds, device)}
        record["rows"].append(row)
        smallest, largest = record["rows"][0], record["rows"][-1]
        record["ratio"] = {"of": [size, sizes[0]], "ms": largest["ms"] / smallest["ms"]}
        memory = "" if row["gib"] is None else f"{row['gib']:8.2f} GiB"
        print(f"{size:>9,} sentences {row['ms']:8.2f} ms each {record['ratio']['ms']:6.2f} x{memory}", flush=True)
        timing.write(given.out, record)  # what is done stays, should the rest be stopped


def sentences(count: int) -> list[str]:
    """Return sentences as long as those of benchmarks/evaluate.py, from all of their words in random order."""
    draw, words = random.Random(0), " ".join(SENTENCES).split()
    found: list[str] = []
    while len(found) < count:
        draw.shuffle(words)
        rest = iter(words)
        found += [" ".join(islice(rest, len(sentence.split()))) for sentence in SENTENCES]
    return found[:count]


def evaluated(task: conserva.Text, texts: list[str]) -> conserva.Evaluation:
    return conserva.evaluate(task, texts, METHODS, reference=False)


def measured(task: conserva.Text, texts: list[str], rounds: int, device: torch.device) -> dict[str, Any]:
    """Return the median milliseconds per sentence of several runs, and the peak memory of all."""
    times: list[float] = []

    def run() -> None:
        for _ in range(rounds):
            times.append(timing.milliseconds(lambda: evaluated(task, texts), device) / len(texts))

    gib = timing.peak_gib(run, device)
    return {
        "rounds": rounds,
        "ms": statistics.median(times),
        "fastest_ms": min(times),
        "slowest_ms": max(times),
        "gib": gib,
    }


if __name__ == "__main__":
    main()
