"""Texts to look at (Ali et al. 2022, figure 5 and appendix D), by the methods that the paper shows and by `exact`."""

from __future__ import annotations

from collections.abc import Iterator

from ..datasets import Labelled
from ..explain import explain
from ..explanation import Explanation
from ..tasks.text import Text

METHODS = ("gi:at=embeddings", "ah:at=embeddings", "ah+ln:at=embeddings", "exact:at=embeddings", "gae", "rollout")

QUOTED = {
    "sst2": (
        "the best way to hope for any chance of enjoying this film is by lowering your expectations .",
        "has a lot of the virtues of eastwood at his best .",
    )
}
"""Dataset -> sentences of its validation split that are shown whatever the classifier says."""

NOT_SHOWN = ("tweeteval-hate",)
"""Datasets of which no text is shown: hate speech is not to be spread."""

PER_CLASS, LONGEST = 1, 30
"""Of every class the first test text that is right and short enough to be read at a glance: chosen by no eye."""


def sentences(task: Text, dataset: str, test: Labelled) -> tuple[Explanation, ...]:
    """Return the explanations of a dataset's texts, text by text."""
    if dataset in NOT_SHOWN:
        return ()
    texts = [*QUOTED.get(dataset, ()), *_first_of_each_class(task, test)]
    shown = [[one.merged() for one in explain(task, texts, method=method)] for method in METHODS]
    return tuple(one for same_text in zip(*shown, strict=True) for one in same_text)


def _first_of_each_class(task: Text, test: Labelled) -> Iterator[str]:
    assert test.labels is not None
    names = {index: name for name, index in task.labels.items()}
    for index in sorted(names):
        right = 0
        for text, label in zip(test.texts, test.labels, strict=True):
            if right == PER_CLASS:
                break
            if label != index or len(task.encode(text, truncate=True)) > LONGEST:
                continue
            if explain(task, text, method="gi").target == names[index]:
                right += 1
                yield text
