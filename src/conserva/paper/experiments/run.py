"""Runs an experiment: trains the models that are missing, evaluates every method on them, and pools the models."""

from __future__ import annotations

from pathlib import Path

from ..._util.files import write_text
from ...evaluation.result import Evaluation
from ...evaluation.run import evaluate
from ..training.record import read_training
from ..training.run import train
from .jobs import Say, run_jobs
from .plan import Plan
from .pooling import pool
from .result import AnyResult

RUNS, MODEL, EVALUATION = "runs", "model", "evaluation.json"


def reproduce(plan: Plan, out: Path, *, jobs: int = 1, say: Say | None = None) -> list[AnyResult]:
    """Run an experiment, or what is missing of it, and write `<dataset>.json` for every dataset.

    Parameters
    ----------
    plan
        What to run.
    out
        The folder of all files.
    jobs
        How many models are trained or evaluated at the same time, each in a process of its own.
    say
        Called with what is being done, how much of it is done, and of how much.
    """
    for name in plan.datasets:
        plan.classifier(name)  # an unknown dataset is refused before anything runs
    models = [(plan, out, name, seed) for name in reversed(plan.datasets) for seed in plan.seeds]
    run_jobs(_train, models, jobs, say, "models")
    run_jobs(_evaluate, [(*one, part) for one in models for part in plan.parts()], jobs, say, "evaluations")
    results = []
    for number, name in enumerate(plan.datasets):
        if say is not None:
            say("putting together", number, len(plan.datasets))
        results.append(_together(plan, out, name))
        write_text(out / f"{name}.json", results[-1].to_json() + "\n")
    return results


def _train(plan: Plan, out: Path, name: str, seed: int, say: Say | None = None) -> None:
    """Train one model; a finished one stays as it is."""
    reading = None if say is None else lambda done, total: say(f"superpixels of {name}", done, total)
    classifier = plan.classifier(name, reading)
    train(
        classifier,
        _folder(out, name, seed) / MODEL,
        seed=seed,
        recipe=plan.recipe(classifier),
        count=plan.training_count(),
        device=plan.device,
        progress=None if say is None else lambda done, total: say(f"training {name}, seed {seed}", done, total),
    )


def _evaluate(plan: Plan, out: Path, name: str, seed: int, part: str, say: Say | None = None) -> None:
    """Evaluate every method on one model; samples that are done are taken from the folder's journal."""
    folder = _folder(out, name, seed)
    task = plan.task(folder / MODEL, name)
    task.model.to(plan.device)
    doing = f"evaluating {name}, seed {seed}" + (f", {part}" if len(plan.parts()) > 1 else "")
    found = evaluate(
        task,
        plan.data(name),
        plan.methods(),
        protocol="paper",
        out=folder / part,
        progress=None if say is None else lambda done, total: say(doing, done, total),
        **plan.options(name, part),
    )
    write_text(folder / part / EVALUATION, found.to_json() + "\n")


def _together(plan: Plan, out: Path, name: str) -> AnyResult:
    """Return one result for all models of a dataset."""
    folders = [_folder(out, name, seed) for seed in plan.seeds]
    evaluations = {part: [Evaluation.load(folder / part / EVALUATION) for folder in folders] for part in plan.parts()}
    classifier = plan.classifier(name)
    data = f"{classifier.title} test"
    return plan.result(
        classifier,
        folders[0] / MODEL,
        [read_training(folder / MODEL) for folder in folders],
        evaluations,
        {part: pool([folder / part for folder in folders], each, data) for part, each in evaluations.items()},
    )


def _folder(out: Path, name: str, seed: int) -> Path:
    return out / RUNS / name / f"seed-{seed}"
