"""The part of the graph experiment's page that tells of the models: what they are, how trained, what they reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...views.markdown import stacked, table
from ..experiments.graph_result import GraphResult, TrainedGraphormer
from ..experiments.published import published_accuracy
from .classifiers import NONE, _range
from .graph_columns import MEASURES, samples_of, steps_of

SAID = {"train+validation": "train and validation", "train": "train", "validation": "validation", "test": "test"}


def models(results: Sequence[GraphResult]) -> str:
    """Return what was trained, and what it reached."""
    titles = (
        "dataset", "classes", "graphs", "evaluated", "parameters", "epoch kept", "measure", "test", "validation",
        "most frequent class", "the paper's",
    )  # fmt: skip
    rows = []
    for one in results:
        each = [f"{100 * value:.1f}" for value in reached(one)]
        theirs = published_accuracy(one.dataset, one.metric)
        valid = [seed.validation for seed in one.trained if seed.validation is not None]
        kept = ", ".join(str(seed.kept_epoch) for seed in one.trained)
        rows.append(
            [
                one.title,
                str(len(one.labels)),
                stacked(*(f"{SAID.get(split, split)} {count:,}" for split, count in one.graphs.items())),
                stacked(f"{samples_of(one):,},", steps_of(one)),
                NONE if one.parameters is None else f"{one.parameters:,}",
                stacked(kept, f"of {_epochs(one.trained)}"),
                MEASURES[one.metric],
                stacked(f"{one.reached():.1%}", f"({', '.join(each)})" if len(each) > 1 else ""),
                _range(valid) if valid else NONE,
                f"{one.majority:.1%}",
                NONE if theirs is None else f"{theirs:.1%}",
            ]
        )
    note = (
        "Test is the mean over models, each one's in brackets in the order of the seeds, on the whole test split, "
        "which had no part in training or in the choice of an epoch. Evaluated are as many graphs of it as said, drawn "
        "at random where that is not all. A model that always says the most frequent class has that accuracy, and a "
        "ROC-AUC of 50.0%."
    )
    return f"{note}\n\n{table(titles, rows)}\n\n{recipes(results)}"


def recipes(results: Sequence[GraphResult]) -> str:
    """Return the shape of the models and how they were trained, a line for each dataset."""
    return "\n".join(f"- {one.title}: {_shape(one.shape)}. {_recipe(one.recipe)}." for one in results)


def trainings_tried(results: Sequence[GraphResult], tried: Sequence[Mapping[str, Any]]) -> str:
    """Return the trainings that were tried, all seeds of one in a row; in bold those that say that they were taken.

    A trial names the settings that it changed, not those it started from, so it cannot be told from them.
    """
    known = {one.dataset: one for one in results}
    trials: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for trial in tried:
        if trial["name"] in known:
            trials.setdefault((trial["name"], trial["tag"]), []).append(trial)
    rows = []
    for (name, tag), each in trials.items():
        one, first = known[name], each[0]
        changed = {**first.get("recipe", {}), **first.get("shape", {})}
        rows.append(
            [
                one.title,
                f"**{tag}**" if first.get("taken") else tag,
                ", ".join(f"`{key}` {_setting(value)}" for key, value in changed.items()) or NONE,
                MEASURES[one.metric],
                ", ".join(str(trial["seed"]) for trial in each),
                *(_values([trial.get(f"{split}_{one.metric}") for trial in each]) for split in ("validation", "test")),
            ]
        )
    if not rows:
        return ""
    note = "What each training had otherwise than the recipe it started from, and what its seeds reached."
    if any(trial.get("taken") for each in trials.values() for trial in each):
        note += " Bold: the settings of the tables' models."
    names = ("dataset", "training", "settings", "measure", "seeds", "validation", "test")
    return f"### Trainings tried\n{note}\n\n{table(names, rows, words=4)}"


def reached(one: GraphResult) -> list[float]:
    """Return what each model reached in the dataset's metric."""
    found = [getattr(seed, f"test_{one.metric}") for seed in one.trained]
    return [value for value in found if value is not None]


def _epochs(trained: Sequence[TrainedGraphormer]) -> str:
    return " or ".join(dict.fromkeys(f"{one.epochs:,}" for one in trained))


def _shape(shape: Mapping[str, Any]) -> str:
    parts = [
        f"{shape['num_hidden_layers']} layers",
        f"width {shape['hidden_size']}",
        f"{shape['num_attention_heads']} heads",
        f"feed-forward width {shape['ffn_size']}",
        "norms before the layers" if shape.get("pre_norm", True) else "norms after the sums",
    ]
    if shape.get("node_values"):
        parts.append(f"nodes as sums of embeddings of categories ({shape['node_values']} ids)")
    if shape.get("node_features"):
        parts.append(f"nodes as a linear layer on {shape['node_features']} numbers")
    edges = shape.get("edge_values")
    parts.append(f"edge encoding up to {shape['max_hops']} hops" if edges else "no edge encoding")
    return ", ".join(parts)


def _recipe(recipe: Mapping[str, Any]) -> str:
    held = "" if recipe.get("hold_out", True) else ", on train and validation together"
    kept = {"best": "the epoch that is best on the validation split is kept", "last": "the last epoch is kept"}
    average = recipe.get("average")
    parts = [
        f"AdamW, learning rate {recipe['learning_rate']:g}, {recipe.get('schedule', 'constant')} schedule after a "
        f"warm-up of {recipe.get('warm_up', 0.0):.0%} of the steps",
        f"weight decay {recipe.get('weight_decay', 0.0):g}",
        f"batches of {recipe['batch_size']}",
        f"{recipe['epochs']:,} epochs{held}",
        kept[recipe.get("keep", "last")] + (f", as an average of weights ({average:g})" if average else ""),
    ]
    return "; ".join(parts)


def _values(values: Sequence[float | None]) -> str:
    known = [NONE if value is None else f"{100 * value:.1f}" for value in values]
    return NONE if all(value is None for value in values) else f"{', '.join(known)} %"


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
