"""From a dataset's name to a trained classifier in a folder."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ..datasets import Dataset, Labelled, dataset
from ..errors import Error
from ..fingerprint import fingerprint
from ..loading import source_of
from ..quiet import quiet_loading
from ..schema import parsed
from ..whole import whole_file
from .batches import Batches
from .recipe import EMBEDDINGS, Recipe, recipe_of
from .trainer import STATE, Trainer, measure

SCHEMA = "conserva/training/1"
RESULT = "training.json"


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
    if Path(out).exists() and not Path(out).is_dir():
        raise Error(f"out={str(out)!r} is a file: name a folder, or what is to become one.")
    out, recipe = Path(out), recipe or recipe_of(data.name)
    settings: dict[str, Any] = {
        "dataset": data.name,
        "seed": seed,
        "recipe": asdict(recipe),
        "as_released": as_released,
        "count": count,
        "embeddings": Path(embeddings).name,
        "device": torch.device(device).type,
    }
    if (done := _finished(out, settings)) is not None:
        return done
    from transformers import AutoTokenizer

    from ..models.attention_only import AttentionOnlyConfig, with_embeddings

    splits = {name: data.read(name, folder).take(count, seed) for name in ("train", "validation", "test")}
    quirks = AttentionOnlyConfig.quirks() if as_released else {}
    with quiet_loading(), torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)  # weights are drawn on the CPU: other devices' states stay
        try:
            tokenizer = AutoTokenizer.from_pretrained(source_of(embeddings))
            model = with_embeddings(source_of(embeddings), data.labels, **quirks)
        except (OSError, ValueError, ImportError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:160]
            raise Error(
                f"embeddings={embeddings!r} could not be loaded: give the folder of a BERT with its tokenizer, or a "
                f"name on the hub ({reason})."
            ) from None
    recipe = replace(recipe, tokens=min(recipe.tokens, model.config.max_position_embeddings))
    place = torch.device(device)
    model.to(place)  # type: ignore[arg-type]  # transformers wraps `to` without its type
    batches = {name: Batches.of(one, tokenizer, recipe.tokens, place) for name, one in splits.items()}
    settings["embeddings_weights"] = fingerprint(model.embeddings)  # folders of one name may hold different BERTs
    trainer = Trainer(model, recipe, batches["train"], batches["validation"], seed, settings)
    best = trainer.run(out, progress)
    accuracy, _ = measure(model, batches["test"])
    tokenizer.model_max_length = recipe.tokens
    with quiet_loading():
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    result = {
        "schema": SCHEMA,
        **settings,
        "validation_accuracy": best.validation_accuracy,
        "test_accuracy": accuracy,
        "majority": _majority(splits["test"]),
        "texts": {name: len(one) for name, one in splits.items()},
        "source": {name: one.source for name, one in splits.items()},
        "epochs": [vars(one) for one in trainer.history],
        "best_epoch": best.epoch,
        "weights": fingerprint(model),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "provenance": {
            **{name: metadata.version(name) for name in ("conserva", "torch", "transformers")},
            "python": platform.python_version(),
        },
    }
    with whole_file(out / RESULT) as half:
        half.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / STATE).unlink()
    return result


def _majority(data: Labelled) -> float:
    """Return the accuracy of always saying the most frequent class."""
    assert data.labels is not None
    return max(map(data.labels.count, set(data.labels))) / len(data)


def read_training(out: Path) -> dict[str, Any]:
    """Return what a finished training wrote beside the weights."""
    path = out / RESULT
    try:
        return {"schema": SCHEMA, **parsed(path.read_text(encoding="utf-8"), SCHEMA, "result of a training")}
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}.") from None
    except Error:
        raise Error(f"{path} is damaged: delete it and start anew.") from None


def _finished(out: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result that a folder holds, if it is one of the same settings."""
    if not (out / RESULT).exists():
        return None
    found = read_training(out)
    changed = [key for key, value in settings.items() if found.get(key) != value]
    if changed:
        raise Error(f"{out} holds another training: it differs in {', '.join(changed)}. Choose another folder.")
    return found
