"""What an evaluation costs: samples per second of `conserva.evaluate` against a loop over single inputs.

The loop does what the released code of Ali et al. (2022) does: batch 1, nothing remembered, an attribution for each
of the two curves, a forward pass for each point. Same model, sentences, methods and protocol; both must find the same.
`python benchmarks/evaluate.py` prints the ratio of medians and writes benchmarks/results/evaluate.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

import conserva
from conserva.attribution import find
from conserva.evaluation.protocol import ERASER_PERCENT, PROTOCOLS
from timing import medians, report

SENTENCES = (
    "a joy.",
    "dull from start to finish.",
    "the jokes fall flat, one after the other.",
    "a warm, funny and surprisingly wise little film.",
    "it is never clear what anybody in this story wants.",
    "beautifully shot, and acted with such care that one forgets the thin plot.",
    "there is one good scene in it, and the trailer shows all of that scene.",
    "for all its noise and speed the film has nothing to say, and says it for two long hours.",
    "what begins as a comedy of manners turns, slowly and with great skill, into something that stays in the mind.",
    "the director has made better films than this one, but even his lesser work has more wit than most.",
    "i laughed twice, looked at my watch nine times, and left with the feeling that somebody owed me an evening.",
    "an honest portrait of a family, told without tears, without music that begs for them, and without one false word.",
    "not for me.",
    "worth every minute.",
    "the second half is a mess, and the first is no better.",
    "she carries the whole picture on her shoulders and makes it look easy.",
    "too clever by half.",
    "a film as grey as its sky, and about as lively.",
    "one of those rare sequels that improve on what came before, mostly by leaving it alone.",
    "the script was written by three people who never met, or so it seems.",
)
METHODS = ("random", "gi", "ah", "ah+ln", "exact", "a-last", "rollout", "gae")
RANDOM_SEEDS = 1


def one_at_a_time(task: conserva.Text, text: str, methods: tuple[str, ...]) -> dict[str, dict[str, list[float]]]:
    """Return the points of each method's curves, one forward pass for each."""
    protocol, mask = PROTOCOLS["default"], task.tokenizer.mask_token_id
    inputs = task.tokenizer(text, return_tensors="pt")
    ids = inputs["input_ids"]
    places = (~torch.tensor(task.encode(text).special)).nonzero().flatten()
    with torch.no_grad():
        clean = task.model(**inputs).logits[0]
    target = int(clean.argmax())
    counts = protocol.counts(len(places))
    tops = [-(-percent * len(places) // 100) for percent in ERASER_PERCENT]

    def logits(removed: torch.Tensor) -> torch.Tensor:
        changed = ids.clone()
        changed[0, removed] = mask
        with torch.no_grad():
            return task.model(input_ids=changed, attention_mask=inputs["attention_mask"]).logits[0]

    def probability(removed: torch.Tensor) -> float:
        return float(logits(removed).softmax(-1)[target])

    def order(name: str, by_size: bool) -> torch.Tensor:
        method = find(f"{name}:seed=0" if name == "random" else name)
        scores = method.apply(task.model, inputs, [target]).scores["input_ids"][0][places].double().numpy()
        return places[torch.from_numpy(np.argsort(np.abs(scores) if by_size else -scores, kind="stable"))]

    found = {}
    for name in methods:
        falling = order(name, by_size=False)
        points = {"activation": [probability(falling[n:]) for n in counts]}
        rising = order(name, by_size=True)
        points["pruning"] = [float((logits(rising[:n]) - clean).square().sum()) for n in counts]
        whole = float(clean.softmax(-1)[target])
        points["comprehensiveness"] = [whole - probability(falling[:n]) for n in tops]
        points["sufficiency"] = [whole - probability(falling[n:]) for n in tops]
        found[name] = points
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--all-methods", action="store_true", help="every method, and five random orders")
    given = options.parse_args()

    task = conserva.load()
    methods = tuple(conserva.methods()) if given.all_methods else METHODS
    singles: dict[str, list[dict[str, dict[str, list[float]]]]] = {}
    streams: dict[str, conserva.Evaluation] = {}

    def loop() -> None:
        singles["found"] = [one_at_a_time(task, text, methods) for text in SENTENCES]

    def stream() -> None:
        streams["found"] = conserva.evaluate(task, list(SENTENCES), methods, random_seeds=RANDOM_SEEDS, reference=False)

    seconds = medians({"conserva.evaluate": stream, "one at a time": loop}, given.rounds)
    for result in streams["found"].methods:
        points = [one[result.method] for one in singles["found"]]
        for curve in ("activation", "pruning"):
            expected = np.mean([one[curve] for one in points], axis=0)
            np.testing.assert_allclose(result.curves[curve].mean, expected, rtol=1e-4, atol=1e-4)
        for metric in ("comprehensiveness", "sufficiency"):
            expected = np.mean([np.mean(one[metric]) for one in points])
            np.testing.assert_allclose(getattr(result, metric).mean, expected, rtol=1e-4, atol=1e-4)
    settings = {"samples": len(SENTENCES), "methods": list(methods), "model": "sentiment", "rounds": given.rounds}
    name = "evaluate-all.json" if given.all_methods else "evaluate.json"
    report("Evaluation, time", seconds, "conserva.evaluate", settings, Path(__file__).parent / "results" / name)


if __name__ == "__main__":
    main()
