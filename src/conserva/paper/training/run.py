"""Trains a classifier and writes it to a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..._util.files import atomic_files, writing
from ...models.quiet import quiet_loading
from ...tasks.fingerprint import fingerprint
from .classifier import Classifier
from .measures import majority, measure
from .recipe import Recipe
from .record import SCHEMA, finished, folder_of, write_training
from .trainer import STATE, Epoch, Trainer

ROWS = 50
"""About how many epochs are listed in the result."""


def train(
    classifier: Classifier,
    out: str | Path,
    *,
    seed: int = 0,
    recipe: Recipe | None = None,
    count: int | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Train a classifier; return the result, which is also written beside the weights.

    Parameters
    ----------
    classifier
        A `TextClassifier` or a `GraphClassifier`.
    out
        The folder for the model. If it holds a finished training of the same settings, that result is returned; if it
        holds a training that was stopped, the training continues from the last state saved.
    seed
        Seed of the initial weights, the order of the batches and the dropout.
    recipe
        How to train; None for the dataset's own recipe.
    count
        How many samples of each split are used; None for all.
    device
        Where to train, as "cuda".
    progress
        Called with the number of steps done, and of all.
    """
    out, recipe = folder_of(out), recipe or classifier.recipe()
    settings: dict[str, Any] = {
        "dataset": classifier.dataset,
        "seed": seed,
        "recipe": asdict(recipe),
        "count": count,
        "device": torch.device(device).type,
        **classifier.settings(),
    }
    if (done := finished(out, settings)) is not None:
        (out / STATE).unlink(missing_ok=True)  # a process that was killed at the very end leaves it
        return done
    place = torch.device(device)
    prepared = classifier.prepare(recipe, seed, count, place)
    model, splits, metric = prepared.model, prepared.splits, classifier.metric
    model.to(place)  # type: ignore[arg-type]  # transformers wraps `to` without its type
    settings |= prepared.settings
    trainer = Trainer(
        model,
        recipe,
        next(iter(splits.values())),
        splits.get("validation"),
        seed,
        {**settings, **prepared.state_settings},
        metric,
        classifier.saved_every,
    )
    kept = trainer.run(out, progress)
    tested = measure(model, splits["test"], metric)
    with writing(out, f"out={str(out)!r}"), quiet_loading(), atomic_files(out) as half:
        model.save_pretrained(half)
        if prepared.tokenizer is not None:
            prepared.tokenizer.save_pretrained(half)
    best = trainer.best_epoch()
    result = {
        "schema": SCHEMA,
        **settings,
        "metric": metric,
        **{f"validation_{name}": kept.validation.get(name) for name in tested},
        **{f"test_{name}": value for name, value in tested.items()},
        "majority": majority(splits["test"].labels.tolist()),
        classifier.samples: {name: len(one) for name, one in splits.items()},
        **prepared.facts,
        "epochs": [one.row() for one in _listed(trainer.history, kept, best)],
        "best_epoch": None if best is None else best.epoch,
        "kept_epoch": kept.epoch,
        "last_epoch": trainer.history[-1].epoch,
        "weights": fingerprint(model),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "provenance": prepared.provenance,
    }
    write_training(out, result)
    (out / STATE).unlink()
    return result


def _listed(history: Sequence[Epoch], *always: Epoch | None) -> list[Epoch]:
    """Return some epochs, spread over all of them, with the last one and those of `always`."""
    every = -(-len(history) // ROWS)
    return [one for one in history if one.epoch % every == 0 or one is history[-1] or one in always]
