"""From the name of a dataset of graphs to a trained Graphormer in a folder."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..._util.files import atomic_files, writing
from ...datasets.graph_catalogue import BOTH, GraphDataset, graph_dataset
from ...errors import Error
from ...models.quiet import quiet_loading
from ...tasks.fingerprint import fingerprint
from .graph_batches import GraphBatches
from .graph_recipe import GraphRecipe, graph_recipe_of
from .graph_trainer import GraphTrainer, graph_measures
from .measures import majority
from .record import SCHEMA, finished, folder_of, provenance, write_training
from .trainer import STATE, Epoch

if TYPE_CHECKING:
    from ...models.graphormer import GraphormerConfig

ROWS = 50
"""About how many epochs are listed in the result."""


def train_graphs(
    data: str | GraphDataset,
    out: str | Path,
    *,
    seed: int = 0,
    recipe: GraphRecipe | None = None,
    shape: Mapping[str, Any] | None = None,
    count: int | None = None,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    reading: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Train a Graphormer on a dataset; return what it reached, which is also written beside the weights.

    Parameters
    ----------
    data
        A dataset's name, as in `conserva.datasets.graph_catalogue`.
    out
        The folder for the model. One that holds a finished training of the same settings is left as it is; one that
        was stopped goes on where its state was last written.
    seed
        Decides the initial weights, the order of the batches and the dropout.
    recipe
        How to train; None for the dataset's own.
    shape
        Settings of `GraphormerConfig` that differ from the dataset's own, as pre_norm=False.
    count
        How many graphs of each split are used; None for all.
    device
        Where to train, as "cuda".
    folder
        The datasets' folder; None for the environment variable CONSERVA_DATA.
    progress
        Called with the number of steps done, and of all.
    reading
        Called with the number of graphs done, and of all, while superpixels are found.
    """
    data = graph_dataset(data) if isinstance(data, str) else data
    out, recipe = folder_of(out), recipe or graph_recipe_of(data.name)
    settings: dict[str, Any] = {
        "dataset": data.name,
        "seed": seed,
        "recipe": asdict(recipe),
        "shape": {**data.shape, **(shape or {})},
        "count": count,
        "device": torch.device(device).type,
    }
    config = _config(data, settings["shape"])
    if (done := finished(out, settings)) is not None:
        (out / STATE).unlink(missing_ok=True)  # which a process leaves that is killed at the very end
        return done
    from ...models.graphormer import Graphormer

    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)  # weights are drawn on the CPU: other devices' states stay
        model = Graphormer(config)
    place = torch.device(device)
    model.to(place)  # type: ignore[arg-type]  # transformers wraps `to` without its type
    names = ("train", "validation", "test") if recipe.hold_out else (BOTH, "test")
    splits = {name: GraphBatches.of(data.read(name, folder, count, seed, reading), config, place) for name in names}
    trainer = GraphTrainer(
        model, recipe, splits[names[0]], splits.get("validation"), seed, settings, metric=data.metric
    )
    kept = trainer.run(out, progress)
    tested = graph_measures(model, splits["test"], data.metric)
    with writing(out, f"out={str(out)!r}"), quiet_loading(), atomic_files(out) as half:
        model.save_pretrained(half)
    best = trainer.best_epoch()
    result = {
        "schema": SCHEMA,
        **settings,
        "metric": data.metric,
        **{f"validation_{name}": kept.validation.get(name) for name in tested},
        **{f"test_{name}": value for name, value in tested.items()},
        "majority": majority(splits["test"].labels.tolist()),
        "graphs": {name: len(one) for name, one in splits.items()},
        "epochs": [one.row() for one in _listed(trainer.history, kept, best)],
        "best_epoch": None if best is None else best.epoch,
        "kept_epoch": kept.epoch,
        "last_epoch": trainer.history[-1].epoch,
        "weights": fingerprint(model),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "provenance": provenance(data.packages),
    }
    write_training(out, result)
    (out / STATE).unlink()
    return result


def _config(data: GraphDataset, shape: Mapping[str, Any]) -> GraphormerConfig:
    """Return the shape of the model, if all of it makes sense."""
    from ...models.graphormer import GraphormerConfig

    known = [name for name in inspect.get_annotations(GraphormerConfig) if name != "model_type"]
    for name, value in shape.items():
        if name not in known:
            raise Error(f"shape has {name!r}: a Graphormer has {', '.join(known)}.")
        if name.endswith("_prob"):
            if not 0 <= value < 1:
                raise Error(f"{name}={value!r} must be from 0 to less than 1.")
        elif value is not None and not isinstance(value, bool) and not value > 0:
            raise Error(f"{name}={value!r} must be more than 0.")
    names = dict(enumerate(data.labels))
    return GraphormerConfig(**shape, id2label=names, label2id={name: index for index, name in names.items()})


def _listed(history: list[Epoch], *always: Epoch | None) -> list[Epoch]:
    """Return some epochs, spread over all of them, the last one and those that matter."""
    every = -(-len(history) // ROWS)
    return [one for one in history if one.epoch % every == 0 or one is history[-1] or one in always]
