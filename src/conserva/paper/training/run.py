"""From a dataset's name to a trained classifier in a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ..._util.files import atomic_files, writing
from ...datasets import Dataset, dataset
from ...models.pretrained import UNTRUSTED, part_of, reading
from ...models.quiet import quiet_loading
from ...tasks.fingerprint import configuration_of, fingerprint, hash_of, preprocessor_hash
from ...tasks.loading import source_of
from .batches import Batches
from .measures import majority
from .recipe import EMBEDDINGS, Recipe, recipe_of
from .record import SCHEMA, finished, folder_of, provenance, read_training, write_training
from .trainer import STATE, TextTrainer, measure

__all__ = ["read_training", "train"]


def train(
    data: str | Dataset,
    out: str | Path,
    *,
    seed: int = 0,
    embeddings: str = EMBEDDINGS,
    recipe: Recipe | None = None,
    as_released: bool = False,
    count: int | None = None,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Train the paper's classifier on a dataset; return what it reached, which is also written beside the weights.

    Parameters
    ----------
    data
        A dataset's name, as in `conserva.datasets`.
    out
        The folder for the model. One that holds a finished training of the same settings is left as it is; one that
        was stopped goes on after its last epoch.
    seed
        Decides the initial weights, the order of the batches and the dropout.
    embeddings
        The BERT whose embeddings are used, frozen: a folder or a name on the hub.
    recipe
        How to train; None for the dataset's own.
    as_released
        Whether the model has the quirks of the paper's released code: unscaled scores, norms without weights that
        divide by the deviation with N - 1.
    count
        How many texts of each split are used; None for all.
    device
        Where to train, as "cuda".
    folder
        The datasets' folder; None for the environment variable CONSERVA_DATA, or the hub.
    progress
        Called with the number of steps done, and of all.
    """
    data = dataset(data) if isinstance(data, str) else data
    out, recipe = folder_of(out), recipe or recipe_of(data.name)
    settings: dict[str, Any] = {
        "dataset": data.name,
        "seed": seed,
        "recipe": asdict(recipe),
        "as_released": as_released,
        "count": count,
        "embeddings": Path(embeddings).name,
        "device": torch.device(device).type,
    }
    if (done := finished(out, settings)) is not None:
        (out / STATE).unlink(missing_ok=True)  # which a process leaves that is killed at the very end
        return done
    from ...models.attention_only import AttentionOnlyConfig, with_embeddings

    splits = {name: data.read(name, folder).take(count, seed) for name in ("train", "validation", "test")}
    quirks = AttentionOnlyConfig.quirks() if as_released else {}
    advice = "give the folder of a BERT with its tokenizer, or a name on the hub."
    with reading(f"embeddings={str(embeddings)!r}", advice), torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)  # weights are drawn on the CPU: other devices' states stay
        source = source_of(embeddings)
        model = with_embeddings(source, data.labels, **quirks)
        tokenizer = part_of("AutoTokenizer", source, UNTRUSTED)
    recipe = replace(recipe, tokens=min(recipe.tokens, model.config.max_position_embeddings))
    place = torch.device(device)
    model.to(place)  # type: ignore[arg-type]  # transformers wraps `to` without its type
    batches = {name: Batches.of(one, tokenizer, recipe.tokens, place) for name, one in splits.items()}
    # Folders of one name may hold different BERTs, and files of one name different texts.
    versions = provenance()
    settings |= {
        "embeddings_weights": fingerprint(model.embeddings),
        "embeddings_configuration": hash_of(configuration_of(model.config)),
        "tokenizer": preprocessor_hash(tokenizer),
        "data": {name: hash_of([one.texts, one.labels]) for name, one in splits.items()},
    }
    trainer = TextTrainer(
        model, recipe, batches["train"], batches["validation"], seed, {**settings, "versions": versions}
    )
    best = trainer.run(out, progress)
    accuracy, _ = measure(model, batches["test"])
    tokenizer.model_max_length = recipe.tokens
    with writing(out, f"out={str(out)!r}"), quiet_loading(), atomic_files(out) as half:
        model.save_pretrained(half)
        tokenizer.save_pretrained(half)
    result = {
        "schema": SCHEMA,
        **settings,
        "validation_accuracy": best.validation["accuracy"],
        "test_accuracy": accuracy,
        "majority": majority(splits["test"].labels or ()),
        "texts": {name: len(one) for name, one in splits.items()},
        "source": {name: one.source for name, one in splits.items()},
        "epochs": [one.row() for one in trainer.history],
        "best_epoch": best.epoch,
        "weights": fingerprint(model),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "provenance": versions,
    }
    write_training(out, result)
    (out / STATE).unlink()
    return result
