"""Tables 1 and 2 for texts: train what is missing, evaluate every method, put the classifiers together."""

from __future__ import annotations

from pathlib import Path

from ..._util.files import write_text
from ...datasets import dataset
from ...evaluation.result import Evaluation
from ...evaluation.run import evaluate
from ...tasks.loading import load
from ...tasks.text import Text
from ..training.record import read_training
from ..training.run import train
from ..training.texts import TextClassifier
from .jobs import Say, run_jobs
from .plan import Plan
from .pooling import pool
from .result import TextResult, Trained
from .sentences import sentences

RUNS, MODEL, EVALUATION = "runs", "model", "evaluation"


def reproduce(plan: Plan, out: Path, *, jobs: int = 1, say: Say | None = None) -> list[TextResult]:
    """Run the experiment, or what is missing of it, and write `<dataset>.json` for every dataset."""
    for name in plan.datasets:
        dataset(name)  # an unknown one is refused before anything runs
    run_jobs(_one, [(plan, out, name, seed) for seed in plan.seeds for name in plan.datasets], jobs, say)
    results = []
    for number, name in enumerate(plan.datasets):
        if say is not None:
            say("putting together", number, len(plan.datasets))
        results.append(_together(plan, out, name))
        write_text(out / f"{name}.json", results[-1].to_json() + "\n")
    return results


def _one(plan: Plan, out: Path, name: str, seed: int, say: Say | None = None) -> None:
    """Train one classifier and evaluate every method on it; what is done already stays as it is."""
    folder = _folder(out, name, seed)
    data = dataset(name)
    classifier = TextClassifier(data, plan.embeddings, plan.as_released)
    train(
        classifier,
        folder / MODEL,
        seed=seed,
        recipe=plan.recipe(classifier.recipe()),
        count=plan.training_count(),
        device=plan.device,
        progress=None if say is None else lambda done, total: say(f"training {name}, seed {seed}", done, total),
    )
    path = folder / EVALUATION / "evaluation.json"
    found = evaluate(  # what is done already is taken from the folder, if it was done in the same way
        _task(plan, folder, name, plan.device),
        data.read("test"),
        plan.methods(),
        protocol="paper",
        count=plan.slice(name).count,
        truncate=True,
        out=folder / EVALUATION,
        progress=None if say is None else lambda done, total: say(f"evaluating {name}, seed {seed}", done, total),
    )
    write_text(path, found.to_json() + "\n")


def _together(plan: Plan, out: Path, name: str) -> TextResult:
    """Return one result for all classifiers of a dataset."""
    data = dataset(name)
    folders = [_folder(out, name, seed) for seed in plan.seeds]
    trained = [read_training(folder / MODEL) for folder in folders]
    evaluations = [Evaluation.load(folder / EVALUATION / "evaluation.json") for folder in folders]
    first = trained[0]
    return TextResult(
        dataset=name,
        title=data.title,
        labels=tuple(data.labels),
        texts=first["texts"],
        majority=first["majority"],
        recipe={**first["recipe"], "embeddings": first["embeddings"], "as_released": first["as_released"]},
        evaluated_tokens=plan.slice(name).tokens,
        trained=tuple(
            Trained(
                seed=one["seed"],
                validation_accuracy=one["validation_accuracy"],
                test_accuracy=one["test_accuracy"],
                best_epoch=one["best_epoch"],
                epochs=len(one["epochs"]),
                weights=one["weights"],
                auac={row.method: row.auac.mean for row in found.methods},
                au_mse={row.method: row.au_mse.mean for row in found.methods},
            )
            for one, found in zip(trained, evaluations, strict=True)
        ),
        evaluation=pool([folder / EVALUATION for folder in folders], evaluations, f"{data.title} test"),
        sentences=sentences(_task(plan, folders[0], name), name, data.read("test")),
        provenance={**first["provenance"], "device": plan.device, "quick": plan.quick},
    )


def _folder(out: Path, name: str, seed: int) -> Path:
    return out / RUNS / name / f"seed-{seed}"


def _task(plan: Plan, folder: Path, name: str, device: str = "cpu") -> Text:
    """Return a trained classifier that reads as many tokens as are evaluated."""
    task = load(folder / MODEL)
    assert isinstance(task, Text)
    task.name = name
    task.tokenizer.model_max_length = plan.slice(name).tokens or task.longest
    task.model.to(device)
    return task
