"""The part of the text experiment's page that tells of the classifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...views.markdown import stacked, table
from ..experiments.published import published_accuracy
from ..experiments.result import TextResult

NONE = "-"
"""What stands where there is no number."""


def classifiers(results: Sequence[TextResult]) -> str:
    """Return what was trained, and what it reached."""
    titles = (
        "dataset", "classes", "train / validation / test texts", "evaluated", "learning rate", "test accuracy",
        "validation accuracy", "most frequent class", "the paper's accuracy",
    )  # fmt: skip
    rows = []
    for one in results:
        cut = f"({one.evaluated_tokens} tokens)" if one.evaluated_tokens else ""
        each = ", ".join(f"{100 * seed.test_accuracy:.1f}" for seed in one.trained)
        theirs = published_accuracy(one.dataset)
        rows.append(
            [
                one.title,
                str(len(one.labels)),
                " / ".join(f"{one.texts[split]:,}" for split in ("train", "validation", "test")),
                stacked(f"{one.evaluation.samples:,}", cut),
                f"{one.recipe['learning_rate']:g}",
                stacked(f"{one.accuracy():.1%}", f"({each})" if len(one.trained) > 1 else ""),
                _range([seed.validation_accuracy for seed in one.trained]),
                f"{one.majority:.1%}",
                NONE if theirs is None else f"{theirs:.1%}",
            ]
        )
    note = (
        "Test accuracy is the mean over classifiers, each one's in brackets, on the whole test split. Evaluated are as "
        "many texts of it as said, drawn at random where that is not all; in brackets how many tokens of each at most."
    )
    return f"{note}\n\n{table(titles, rows)}"


def trainings_tried(results: Sequence[TextResult], tried: Sequence[Mapping[str, Any]]) -> str:
    """Return the trainings with other learning rates; in bold those of the rate that was taken."""
    rates = {one.dataset: one.recipe for one in results}
    titles = {one.dataset: one.title for one in results}
    rows = []
    for one in tried:
        if one["dataset"] in rates:
            taken = all(one[key] == rates[one["dataset"]][key] for key in ("learning_rate", "weight_decay"))
            rate = f"{one['learning_rate']:g}"
            rows.append(
                [
                    titles[one["dataset"]],
                    f"**{rate}**" if taken else rate,
                    f"{one['weight_decay']:g}",
                    f"{one['validation_accuracy']:.1%}",
                    f"{one['test_accuracy']:.1%}",
                    f"{one['best_epoch']} of {one['epochs']}",
                ]
            )
    if not rows:
        return ""
    note = (
        "Trainings with seed 0 that led to the learning rates, bold the one taken: the best on the validation split "
        "without weight decay, which the paper's recipe does not have; the lower one of two that are level."
    )
    names = ("dataset", "learning rate", "weight decay", "validation accuracy", "test accuracy", "best epoch")
    return f"### Learning rates\n{note}\n\n{table(names, rows)}"


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1%}", f"{max(values):.1%}"
    return low if low == high else f"{low} to {high}"
