"""Measure how the levels of AUAC move when one thing about the classifier or the evaluation is changed.

`python scripts/levels.py --embeddings BERT --models FOLDER` trains the classifiers that are missing in the folder, on a
CPU in minutes each, measures every change on some test texts, and writes docs/results/levels/levels.json;
`python scripts/levels_page.py` writes the page from it. A run that was stopped continues.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from conserva import evaluate
from conserva._util.versions import versions
from conserva.datasets import dataset
from conserva.evaluation.journal import NAME, samples_of
from conserva.evaluation.statistics import area
from conserva.paper.experiments.published import published
from conserva.paper.experiments.result import shortened
from conserva.paper.experiments.rows import AT
from conserva.paper.training.recipe import TextRecipe
from conserva.paper.training.record import read_training
from conserva.paper.training.run import train
from conserva.paper.training.texts import TextClassifier
from conserva.tasks.loading import load
from conserva.tasks.text import Text
from conserva.views.markdown import file_name

OUT = Path(__file__).parents[1] / "docs" / "results" / "levels" / "levels.json"
COUNT, SEED, RANDOM_SEEDS, RESAMPLES = 250, 0, 2, 10_000
METHODS = ("random", f"ah+ln{AT}")
NAMES = ("random", "ah+ln")
"""What the methods are called in the result."""
PLACES = np.linspace(0, 1, 11)
"""The shares of tokens at the points of a curve."""


class StoppedRecipe(TextRecipe):
    """The first epochs of the training by the dataset's recipe: the learning rate falls as in all of its epochs."""

    keep = "last"

    def share(self, step: int, total: int) -> float:
        """Return the share of the learning rate for a step of the whole training."""
        return super().share(step, total // self.epochs * TextRecipe().epochs)


@dataclass(frozen=True)
class Change:
    """One change: of the classifier's training, of the evaluation, or of the weight that each text has."""

    title: str
    group: str
    """`texts`, `measure`, `removal` or `classifier`."""
    split: str = "test"
    weight: str = "equal"
    """`equal`, `right`: only texts that are classified correctly, or `balanced`: all classes count alike."""
    temperature: float | str = 1.0
    """What logits are divided by; `printed`: so that the AU-MSE of Random is that of the paper's column."""
    protocol: str = "paper"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `conserva.evaluate`."""
    model: str = "seed-0"
    """The classifier, a key of `MODELS`."""


@dataclass(frozen=True)
class Model:
    """How a classifier is trained, where that is not the dataset's recipe."""

    seed: int = 0
    as_released: bool = False
    recipe: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    """After how many epochs the training is stopped; None where validation says."""


MODELS: Mapping[str, Model] = {
    "seed-0": Model(),
    "epochs-1": Model(epochs=1),
    "seed-1": Model(seed=1),
    "as-released": Model(as_released=True),
    "epochs-8": Model(epochs=8),
    "paper-rate": Model(recipe={"learning_rate": 2e-5}),
}
DATASETS: Mapping[str, tuple[str, ...]] = {
    "tweeteval-emotion": tuple(MODELS),
    "tweeteval-hate": ("seed-0", "epochs-1"),
    "semaine": ("seed-0", "epochs-1", "as-released"),
}
"""Dataset -> the classifiers that are trained on it."""
LEFT_OUT = {"tweeteval-hate": ("removal",)}
"""Dataset -> the groups of changes that are not measured on it, to save time."""

BASE = Change("base", "base")
CHANGES = (
    Change("only texts classified correctly", "texts", weight="right"),
    Change("each class counts alike", "texts", weight="balanced"),
    Change("validation split", "texts", split="validation"),
    Change("training split", "texts", split="train"),
    Change("predicted class", "measure", options={"watch": "predicted"}),
    Change("logits times 2", "measure", temperature=0.5),
    Change("logits times 1/2", "measure", temperature=2.0),
    Change("logits scaled to the paper's AU-MSE", "measure", temperature="printed"),
    Change("one token a step", "removal", options={"steps": "each"}),
    Change("special tokens stay", "removal", protocol="default", options={"watch": "true", "mask": "unk"}),
    Change("token `[MASK]`", "removal", options={"mask": "mask"}),
    Change("token `[PAD]`", "removal", options={"mask": "pad"}),
    Change(
        "hidden from attention, special tokens stay",
        "removal",
        protocol="default",
        options={"watch": "true", "mask": "drop"},
    ),
    Change("another seed", "classifier", model="seed-1"),
    Change("stopped after 1 epoch", "classifier", model="epochs-1"),
    Change("stopped after 8 epochs", "classifier", model="epochs-8"),
    Change("learning rate 2e-05", "classifier", model="paper-rate"),
    Change("quirks of the released code", "classifier", model="as-released"),
)


@dataclass(frozen=True)
class Measured:
    """The points of some texts: samples x methods x points; their labels, whether they are predicted, and weights."""

    shown: np.ndarray
    """The probability of the class as tokens are added."""
    removed: np.ndarray
    """The squared change of the logits as tokens are removed."""
    labels: np.ndarray
    right: np.ndarray
    weights: np.ndarray

    def weighted(self, weight: str) -> Measured:
        """Return the same with weights by the name that a change gives them."""
        if weight == "right":
            return replace(self, weights=self.right.astype(float))
        if weight == "balanced":
            classes, counts = np.unique(self.labels, return_counts=True)
            shares = dict(zip(classes.tolist(), (1 / counts).tolist(), strict=True))
            return replace(self, weights=np.array([shares[label] for label in self.labels.tolist()]))
        return self

    @property
    def areas(self) -> np.ndarray:
        """AUAC of each text: samples x methods."""
        return area(self.shown, PLACES)

    @property
    def au_mse(self) -> np.ndarray:
        """AU-MSE of Random over all texts, and of the other method."""
        return np.average(area(self.removed, PLACES), axis=0, weights=self.weights)


def main() -> None:
    """Train, measure and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--embeddings", required=True, help="a folder or a name on the Hugging Face hub")
    options.add_argument("--models", type=Path, required=True, help="the folder of the classifiers")
    options.add_argument("--datasets", nargs="+", default=list(DATASETS))
    options.add_argument("--count", type=int, default=COUNT, help="how many texts are drawn")
    options.add_argument("--train-only", action="store_true", help="train the classifiers, and end")
    options.add_argument("--out", type=Path, default=OUT)
    given = options.parse_args()
    for name in given.datasets:
        for model in DATASETS[name]:
            trained(name, model, given.embeddings, given.models)
    if given.train_only:
        return
    known = json.loads(given.out.read_text(encoding="utf-8"))["datasets"] if given.out.exists() else {}
    for name in given.datasets:
        known[name] = measure_all(name, given.models, given.count)
    result = {
        "count": given.count,
        "seed": SEED,
        "random_seeds": RANDOM_SEEDS,
        "resamples": RESAMPLES,
        "versions": versions(),
        "datasets": {name: known[name] for name in DATASETS if name in known},
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(shortened(result), indent=1) + "\n", encoding="utf-8")


def measure_all(name: str, models: Path, count: int) -> dict[str, Any]:
    """Return every change on a dataset, each beside the base."""
    base = measure(name, BASE, models, count)
    rows = []
    for change in CHANGES:
        if not applies(change, name):
            continue
        if isinstance(change.temperature, str):
            theirs = published("au_mse", name, "random")
            if theirs is None:
                continue
            change = replace(change, temperature=float(np.sqrt(base.au_mse[0] / theirs.value)))
        # Weights change neither texts nor points.
        found = measure(name, change, models, count) if change.weight == "equal" else base.weighted(change.weight)
        row = {"title": change.title, "group": change.group, "temperature": change.temperature}
        rows.append({**row, **summary(found), "moved": moved(found, base, change.split == "test")})
        print(name, change.title, shortened(rows[-1]["moved"]), flush=True)
    kept = ("test_accuracy", "validation_accuracy", "kept_epoch", "last_epoch")
    return {
        "base": summary(base),
        "changes": rows,
        "models": {
            change.title: {what: read_training(models / name / change.model)[what] for what in kept}
            for change in (BASE, *CHANGES)
            if change is BASE or (change.group == "classifier" and change.model in DATASETS[name])
        },
    }


def applies(change: Change, name: str) -> bool:
    """Return whether a change is measured on a dataset: not where the dataset's own recipe has it."""
    own, new = TextClassifier(name).recipe(), MODELS[change.model].recipe
    same = bool(new) and all(getattr(own, key) == value for key, value in new.items())
    return change.model in DATASETS[name] and change.group not in LEFT_OUT.get(name, ()) and not same


def trained(name: str, model: str, embeddings: str, models: Path) -> dict[str, Any]:
    """Train a classifier, or return what its training wrote."""
    how = MODELS[model]
    classifier = TextClassifier(name, embeddings, how.as_released)
    recipe = replace(classifier.recipe(), **how.recipe)
    if how.epochs is not None:
        recipe = StoppedRecipe(**{**asdict(recipe), "epochs": how.epochs})
    print("training", name, model, flush=True)
    return train(classifier, models / name / model, seed=how.seed, recipe=recipe)


def measure(name: str, change: Change, models: Path, count: int) -> Measured:
    """Evaluate one classifier on some texts, as a change says."""
    task = load(models / name / change.model)
    assert isinstance(task, Text)
    assert isinstance(change.temperature, float)
    for parameter in task.model.classifier.parameters():
        parameter.data /= change.temperature
    folder = models / name / "measured" / file_name(change.title)
    evaluate(
        task,
        dataset(name).read(change.split),
        METHODS,
        protocol=change.protocol,
        count=count,
        seed=SEED,
        random_seeds=RANDOM_SEEDS,
        reference=False,
        truncate=True,
        out=folder,
        **change.options,
    )
    records = list(samples_of(folder / NAME))
    labels = np.array([scored["label"] for scored, _ in records])
    right = np.array([scored["label"] == scored["predicted"] for scored, _ in records])
    shown, removed = (
        np.stack([_points(points["methods"], curve) for _, points in records]) for curve in ("activation", "pruning")
    )
    return Measured(shown, removed, labels, right, np.ones(len(labels)))


def _points(found: Mapping[str, Any], curve: str) -> np.ndarray:
    """Return a curve of both methods at `PLACES`; of Random the mean over its seeds."""
    each: dict[str, list[np.ndarray]] = {name: [] for name in NAMES}
    for method, points in found.items():
        values = np.array(points[curve])
        at_places = np.interp(PLACES, np.linspace(0, 1, len(values)), values)
        each["random" if method.startswith("random") else "ah+ln"].append(at_places)
    return np.stack([np.mean(each[name], axis=0) for name in NAMES])


def summary(found: Measured) -> dict[str, Any]:
    """Return AUAC with its interval, and the probability where nothing and where everything is shown."""
    areas = found.areas
    mean = np.average(found.shown[:, 0], axis=0, weights=found.weights)
    return {
        "samples": int((found.weights > 0).sum()),
        "accuracy": float(np.average(found.right, weights=found.weights)),
        "auac": dict(zip(NAMES, interval(resampled(areas, found.weights, 0), areas, found.weights), strict=True)),
        "au_mse": dict(zip(NAMES, found.au_mse.tolist(), strict=True)),
        "start": float(mean[0]),
        "end": float(mean[-1]),
    }


def moved(found: Measured, base: Measured, paired: bool) -> dict[str, list[float]]:
    """Return by how much AUAC differs from the base: mean and interval; on the same texts they are drawn together."""
    a, b = (resampled(one.areas, one.weights, seed) for one, seed in ((found, 0), (base, 0 if paired else 1)))
    points = [np.average(one.areas, axis=0, weights=one.weights) for one in (found, base)]
    limits = np.quantile(a - b, [0.025, 0.975], axis=0)
    return {
        name: [float(points[0][i] - points[1][i]), float(limits[0][i]), float(limits[1][i])]
        for i, name in enumerate(NAMES)
    }


def resampled(areas: np.ndarray, weights: np.ndarray, seed: int) -> np.ndarray:
    """Return weighted means of resamples of the texts: resamples x methods."""
    rng, count = np.random.default_rng(seed), len(areas)
    draws = rng.multinomial(count, np.full(count, 1 / count), RESAMPLES) * weights
    return (draws @ areas) / draws.sum(1, keepdims=True)


def interval(draws: np.ndarray, areas: np.ndarray, weights: np.ndarray) -> list[list[float]]:
    """Return mean and 95 % interval for each method."""
    mean, limits = np.average(areas, axis=0, weights=weights), np.quantile(draws, [0.025, 0.975], axis=0)
    return np.stack([mean, *limits], 1).tolist()


if __name__ == "__main__":
    main()
