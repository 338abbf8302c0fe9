"""The part of the page about the models: how they were trained, and what they reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...views.markdown import stacked, table
from ..experiments.published import published_accuracy
from ..experiments.result import AnyResult, reached
from .cells import MEASURES, NONE, percent, setting


def models(results: Sequence[AnyResult]) -> str:
    """Return a table of the models, and their settings."""
    titles = (
        "dataset", "classes", "samples", "evaluated", "epoch kept", "measure", "test", "validation",
        "most frequent class", "the paper's",
    )  # fmt: skip
    note = (
        "Test is the mean over models, each one's in brackets in the order of the seeds, on the whole test split, "
        "which was used neither in training nor to choose an epoch. Evaluated are as many samples of it as said, drawn "
        "at random where that is not all. A model that always predicts the most frequent class has that accuracy, and "
        "a ROC-AUC of 50.0%."
    )
    settings = "\n".join(f"- {one.title}: {_settings(one.settings)}." for one in results)
    return f"{note}\n\n{table(titles, [_row(one) for one in results])}\n\n{settings}"


def trainings_tried(results: Sequence[AnyResult], tried: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the trainings with other settings, all seeds of one in a row; bold are those marked as taken.

    Parameters
    ----------
    results
        The results on the page.
    tried
        The trainings: each with `name` of the dataset, `tag`, `seed`, and the settings that were changed in `recipe`
        and `shape`; if they are known, `validation_accuracy`, `test_accuracy` (or `_roc_auc`) and `taken`.
    """
    known = {one.dataset: one for one in results}
    trials: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for trial in tried:
        if trial["name"] in known:
            trials.setdefault((trial["name"], trial["tag"]), []).append(trial)
    rows = []
    for (name, tag), each in trials.items():
        one, first = known[name], each[0]
        rows.append(
            [
                one.title,
                f"**{tag}**" if first.get("taken") else tag,
                _settings({**first.get("recipe", {}), **first.get("shape", {})}) or NONE,
                MEASURES[one.metric],
                ", ".join(str(trial["seed"]) for trial in each),
                *(_values([trial.get(f"{split}_{one.metric}") for trial in each]) for split in ("validation", "test")),
            ]
        )
    if not rows:
        return ""
    note = "The settings that each training changed, and what its seeds reached."
    if any(trial.get("taken") for each in trials.values() for trial in each):
        note += " Bold: the settings of the tables' models."
    names = ("dataset", "training", "settings", "measure", "seeds", "validation", "test")
    return f"### Trainings tried\n{note}\n\n{table(names, rows, words=4)}"


def _row(one: AnyResult) -> list[str]:
    each = reached(one)
    valid = sorted(model.validation for model in one.trained if model.validation is not None)
    ends = list(dict.fromkeys(map(percent, valid[:1] + valid[-1:])))
    kept = ", ".join(str(model.kept_epoch) for model in one.trained)
    last = " or ".join(dict.fromkeys(f"{model.epochs:,}" for model in one.trained))
    count = max(found.samples for found in one.evaluations.values())
    return [
        one.title,
        str(len(one.labels)),
        stacked(*(f"{split} {number:,}" for split, number in one.samples.items())),
        stacked(f"{count:,}", f"({one.extent})" if one.extent else ""),
        stacked(kept, f"of {last}"),
        MEASURES[one.metric],
        stacked(
            percent(sum(each) / len(each)),
            f"({', '.join(f'{100 * value:.1f}' for value in each)})" if len(each) > 1 else "",
        ),
        " to ".join(ends) or NONE,
        percent(one.majority),
        percent(published_accuracy(one.dataset, one.metric)),
    ]


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}` {setting(value)}" for name, value in settings.items())


def _values(values: Sequence[float | None]) -> str:
    known = [NONE if value is None else f"{100 * value:.1f}" for value in values]
    return NONE if all(value is None for value in values) else f"{', '.join(known)} %"
