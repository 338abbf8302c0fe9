"""Explanations of some texts (Ali et al. 2022, figure 5 and appendix D)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch

from ...datasets import Labelled
from ...explaining.explain import explain
from ...results.explanation import Explanation
from ...tasks.text import Text
from .rows import AT

METHODS = (*(f"{rules}{AT}" for rules in ("gi", "ah", "ah+ln", "exact")), "gae", "rollout")

QUOTED = {
    "sst2": (
        "the best way to hope for any chance of enjoying this film is by lowering your expectations .",
        "has a lot of the virtues of eastwood at his best .",
    )
}
"""Dataset -> sentences of its validation split that are shown whatever the classifier says."""

NOT_SHOWN = ("tweeteval-hate",)
"""Datasets of which no text is shown: they hold hate speech."""

LONGEST, MOST_LETTERS = 30, 200
"""The longest texts that are shown, in tokens and in letters."""

LOOKED_AT = 100
"""How many short texts of a class are tried: a poor classifier may get none of them right."""


def sentences(task: Text, dataset: str, test: Labelled) -> tuple[Explanation, ...]:
    """Return the explanations of a dataset's texts, text by text."""
    if dataset in NOT_SHOWN:
        return ()
    texts = [*QUOTED.get(dataset, ()), *_first_of_each_class(task, test)]
    shown = [[one.merged() for one in explain(task, texts, method=method)] for method in METHODS]
    return tuple(one for same_text in zip(*shown, strict=True) for one in same_text)


def _first_of_each_class(task: Text, test: Labelled) -> Iterator[str]:
    """Yield the first text of every class that is short and classified correctly."""
    assert test.labels is not None
    for index in sorted(task.labels.values()):
        of_class = (text for text, label in zip(test.texts, test.labels, strict=True) if label == index)
        short = (task.encode(text, truncate=True) for text in of_class if len(text) <= MOST_LETTERS)
        encoded = list(islice((one for one in short if len(one) <= LONGEST), LOOKED_AT))
        if encoded:
            with torch.inference_mode():
                predicted = task.model(**task.batch(encoded)).logits.argmax(-1).tolist()
            yield from [one.text for one, found in zip(encoded, predicted, strict=True) if found == index][:1]
