"""Which method predicts best what a text classifier does without some words? Candidates, to choose among.

`python benchmarks/candidates.py --embeddings FOLDER --out FOLDER` trains the classifiers of the paper's text experiment
(one for each dataset and seed), evaluates every candidate on their validation splits, and prints one table for each
measure: means with 95 % intervals over samples, and for each dataset the methods that are not surely behind the best.
Nothing is chosen on test splits: `--split test` is for the methods that were chosen, given by `--methods`. Models and
points are kept in the folder, and an interrupted run goes on where it was. CONSERVA_DATA names the folder of datasets.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import conserva
import timing
from conserva.datasets import Labelled
from conserva.datasets import dataset as dataset_of
from conserva.evaluation.result import Evaluation
from conserva.paper.experiments.jobs import run_jobs
from conserva.paper.experiments.texts import TextPlan
from conserva.paper.training.run import train
from conserva.views.markdown import stacked, table

DATASETS = ("tweeteval-emotion", "semaine", "meld-s", "tweeteval-hate", "sst2", "tweeteval-sentiment", "imdb")
ONE_PASS = ("gi", "ah", "ln", "ah+ln", "exact", "attnlrp", "gim")
CANDIDATES = (
    "random",
    *ONE_PASS,
    *(f"{name}:residual={strength}" for name in ("ln", "ah+ln", "exact", "attnlrp", "gim") for strength in (1, 0.25)),
    *(f"path:rules={name}:baseline=mask" for name in (*ONE_PASS, "exact+res", "attnlrp+res")),
    *(f"path:rules=ln:baseline={start}" for start in ("mean", "pad", "zero")),
    *(f"path:rules={name}:baseline=mask:steps={steps}" for name in ("ln", "attnlrp") for steps in (1, 2, 9)),
    "ig:steps=9",
    "gae",
    "rollout",
    "a-last",
    "chefer",
)
MEASURES = {"auac": "AUAC, higher is better", "au_mse": "AU-MSE, lower is better"}


@dataclass(frozen=True)
class Candidates(TextPlan):
    """The text experiment with other methods, on a split of choice."""

    chosen: tuple[str, ...] = CANDIDATES
    split: str = "validation"
    protocol: str = "default"
    count: int | None = None

    def methods(self) -> list[str]:
        return list(self.chosen)

    def data(self, dataset: str) -> Labelled:
        return dataset_of(dataset).read(self.split)

    def folder(self, out: Path, dataset: str, seed: int) -> Path:
        return out / "runs" / dataset / f"seed-{seed}"

    def result(self, out: Path, dataset: str, seed: int) -> Path:
        return out / f"{dataset}-{seed}-{self.split}-{self.protocol}.json"


def run(plan: Candidates, out: Path, dataset: str, seed: int, say: Any = None) -> None:
    """Train one classifier, unless it is there, and evaluate all methods on it."""
    folder, classifier = plan.folder(out, dataset, seed), plan.classifier(dataset)
    if plan.result(out, dataset, seed).exists():
        return
    train(
        classifier,
        folder / "model",
        seed=seed,
        recipe=plan.recipe(classifier),
        count=plan.training_count(),
        device=plan.device,
    )
    task = plan.task(folder / "model", dataset)
    task.model.to(plan.device)
    found = conserva.evaluate(
        task,
        plan.data(dataset),
        plan.methods(),
        protocol=plan.protocol,
        count=plan.slice(dataset).count if plan.quick else plan.count,
        truncate=True,
        out=folder / f"{plan.split}-{plan.protocol}",
    )
    plan.result(out, dataset, seed).write_text(found.to_json() + "\n", encoding="utf-8")
    print(f"{dataset}, seed {seed}: {found.samples} samples", flush=True)


def tables(results: Mapping[str, Evaluation]) -> list[str]:
    """Return a table for each measure: methods by datasets, ordered by their mean rank."""
    parts = []
    for measure, title in MEASURES.items():
        ranks = _ranks(results, measure)
        level = {name: _level(result, measure) for name, result in results.items()}
        rows = [
            [
                f"`{method}`",
                f"{rank:.1f}",
                *(_cell(result, measure, method, level[name]) for name, result in results.items()),
            ]
            for method, rank in sorted(ranks.items(), key=lambda pair: pair[1])
        ]
        parts += [
            f"## {title}",
            "Mean and 95 % interval over samples. Bold: not surely behind the best of its column, leave-one-out apart.",
            table(["method", "mean rank", *results], rows),
        ]
    return parts


def summary(results: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Return what the tables show as numbers: mean, low and high of each measure."""
    first = next(iter(results.values()))
    return {
        "versions": {name: first.provenance.get(name) for name in ("conserva", "torch", "python")},
        "weights": {name: result.provenance.get("weights") for name, result in results.items()},
        "samples": {name: result.samples for name, result in results.items()},
        **{
            measure: {
                name: {method: [one.mean, one.low, one.high] for method, one in _values(result, measure).items()}
                for name, result in results.items()
            }
            for measure in MEASURES
        },
    }


def _values(result: Evaluation, measure: str) -> dict[str, Any]:
    return {one.method: getattr(one, measure) for one in result.methods}


def _ranks(results: Mapping[str, Evaluation], measure: str) -> dict[str, float]:
    """Return the mean rank of each method over the datasets, 1 for the best."""
    totals: dict[str, float] = {}
    for result in results.values():
        values = {name: one.mean for name, one in _values(result, measure).items()}
        for rank, name in enumerate(sorted(values, key=values.__getitem__, reverse=measure == "auac"), 1):
            totals[name] = totals.get(name, 0.0) + rank / len(results)
    return totals


def _level(result: Evaluation, measure: str) -> set[str]:
    """Return the methods whose paired difference from the best one has an interval that reaches 0."""
    values = {name: one.mean for name, one in _values(result, measure).items() if name != "leave-one-out"}
    better = max if measure == "auac" else min
    best = better(values, key=values.__getitem__)
    level = {best}
    for pair in result.pairs:
        if pair.metric == measure and best in (pair.a, pair.b) and pair.low <= 0 <= pair.high:
            level |= {pair.a, pair.b}
    return level


def _cell(result: Evaluation, measure: str, method: str, level: set[str]) -> str:
    value = _values(result, measure)[method]
    mean = f"{value.mean:.3f}"
    return stacked(f"**{mean}**" if method in level else mean, f"[{value.low:.3f}, {value.high:.3f}]")


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--embeddings", required=True, help="the BERT whose embeddings are used: a folder or a hub name"
    )
    options.add_argument("--datasets", nargs="+", default=DATASETS, choices=DATASETS)
    options.add_argument("--seeds", type=int, nargs="+", default=[0])
    options.add_argument("--methods", nargs="+", default=CANDIDATES, help="the methods; all candidates")
    options.add_argument("--split", default="validation", choices=("validation", "test"))
    options.add_argument("--protocol", default="default", choices=("default", "paper"))
    options.add_argument("--count", type=int, help="how many samples of a split, drawn at random; all")
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--quick", action="store_true", help="a small slice of everything, to try the whole path")
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args(arguments)
    plan = Candidates(
        tuple(given.datasets),
        tuple(given.seeds),
        timing.default_device().type,
        given.quick,
        given.embeddings,
        chosen=tuple(given.methods),
        split=given.split,
        protocol=given.protocol,
        count=given.count,
    )
    given.out.mkdir(parents=True, exist_ok=True)
    run_jobs(
        run, [(plan, given.out, name, seed) for name in plan.datasets for seed in plan.seeds], given.jobs, None, ""
    )
    for seed in plan.seeds:
        found = {name: Evaluation.load(plan.result(given.out, name, seed)) for name in plan.datasets}
        text = "\n\n".join([f"# {given.split.capitalize()} splits, seed {seed}", *tables(found)])
        name = f"{given.split}-{given.protocol}-{seed}"
        (given.out / f"{name}.md").write_text(text + "\n", encoding="utf-8")
        timing.write(given.out / f"{name}.json", summary(found))
        print(text)


if __name__ == "__main__":
    main()
