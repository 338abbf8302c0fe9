"""Zero-shot classification of transformers: labels as hypotheses about a text, ranked by a model of entailment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..attribution import MethodLike
from ..engine.memory import AUTO
from ..engine.rules import DEFAULT
from ..errors import Error
from ..explaining.explain import explain
from ..explaining.explained import MOST_CLASSES
from ..results.explanation import ClassScore, Explanation
from ..results.explanations import Explanations
from ..tasks.text import Text
from .ranking import LABELS, ranked, task_of_pairs, with_sections

__all__ = ["explain_labels"]

TEMPLATE = "This example is {}."
"""The hypothesis about a text, by default."""


def explain_labels(
    model: Any,
    text: str,
    candidate_labels: Iterable[str] | None = None,
    *,
    hypothesis_template: str | None = None,
    multi_label: bool | None = None,
    method: MethodLike = DEFAULT,
    truncate: bool = False,
    batch_tokens: int | None = None,
    trusted: Collection[str] = (),
    checkpoint: str = AUTO,
    fingerprint: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Explanations:
    """Rank labels for a text as a `zero-shot-classification` pipeline does, and explain the output for each of them.

    What is explained is the logit of entailment of the pair of the text and the label's hypothesis. The probability of
    a label is a softmax of these logits, so that the difference of two of them, which
    `conserva.integrations.ranking.contrast` explains, is the logarithm of the ratio of the two probabilities.

    Parameters
    ----------
    model
        A `zero-shot-classification` pipeline, or the `conserva.Text` of a model of entailment.
    text
        The text to classify.
    candidate_labels
        The labels, as a list or as a text with commas. None takes those that the pipeline was created with.
    hypothesis_template
        The hypothesis, with {} in place of the label. None takes that of the pipeline, or "This example is {}."
    multi_label
        Whether several labels may be true. What is explained is then the logit of entailment minus that of
        contradiction, and the probability of a label is its sigmoid. None takes what the pipeline was created with. A
        single label is always explained like this.
    method, truncate, batch_tokens, trusted, checkpoint, fingerprint, progress
        As in `conserva.explain`.

    Returns
    -------
    Explanations
        One explanation for each label, the most probable first. Its target is the label, its sections are "text" and
        "hypothesis" with the label, and its `classes` are all labels.

    Examples
    --------
    >>> from transformers import pipeline  # doctest: +SKIP
    >>> pipe = pipeline("zero-shot-classification", "facebook/bart-large-mnli")  # doctest: +SKIP
    >>> ranking = explain_labels(pipe, "My phone must be repaired soon!", ["urgent", "garden"])  # doctest: +SKIP
    >>> [(one.target, one.probability) for one in ranking]  # doctest: +SKIP
    [('urgent', 0.98), ('garden', 0.02)]
    """
    task = task_of_pairs(model)
    created = getattr(model, "_preprocess_params", {})
    labels = _labels(created.get("candidate_labels") if candidate_labels is None else candidate_labels)
    template = hypothesis_template or created.get("hypothesis_template") or TEMPLATE
    if multi_label is None:
        multi_label = bool(getattr(model, "_postprocess_params", {}).get("multi_label"))
    if not isinstance(text, str):
        raise Error(f"text={text!r:.60} is not a string: give one text at a time.")
    separate = multi_label or len(labels) == 1
    many = explain(
        task,
        [(text, _hypothesis(template, label)) for label in labels],
        _target(task, separate),
        method=method,
        truncate=truncate,
        batch_tokens=batch_tokens,
        trusted=trusted,
        checkpoint=checkpoint,
        fingerprint=fingerprint,
        progress=progress,
    )
    outputs = torch.tensor([one.output for one in many], dtype=torch.float64)
    probabilities = (outputs.sigmoid() if separate else outputs.softmax(0)).tolist()
    classes = [
        ClassScore(label, one.output, probability)
        for label, one, probability in zip(labels, many, probabilities, strict=True)
    ]
    highest = sorted(classes, key=lambda each: -each.output)
    known = {LABELS: labels, "hypothesis": template, "head": "multi_label" if separate else "single_label"}
    return ranked(_of_label(one, own, highest, known) for one, own in zip(many, classes, strict=True))


def _of_label(
    one: Explanation, own: ClassScore, classes: Sequence[ClassScore], known: Mapping[str, Any]
) -> Explanation:
    """Return the explanation of a pair as that of a label."""
    shown = classes[:MOST_CLASSES]
    return replace(
        with_sections(one, "text", f"hypothesis {own.label}", **known),
        target=own.label,
        probability=own.probability,
        classes=tuple(shown if own in shown else [*shown, own]),
    )


def _labels(given: Any) -> list[str]:
    """Return the labels as a list, from a list or a text with commas."""
    if given is None:
        raise Error("candidate_labels=None, and the pipeline was not created with labels: give a list of labels.")
    labels = given.split(",") if isinstance(given, str) else given
    if isinstance(labels, (bytes, Mapping)) or not isinstance(labels, Iterable):
        raise Error(f"candidate_labels={given!r:.60} is not a list of labels.")
    labels = list(labels)
    if wrong := [label for label in labels if not isinstance(label, str)]:
        raise Error(f"candidate_labels has {wrong[0]!r:.60}, which is not a string: give a list of labels.")
    kept = [label.strip() for label in labels if label.strip()] if isinstance(given, str) else labels
    if not kept:
        raise Error(f"candidate_labels={given!r:.60} has no labels: give at least one.")
    return kept


def _hypothesis(template: Any, label: str) -> str:
    """Return the hypothesis for a label."""
    try:
        hypothesis = str(template.format(label))
    except (AttributeError, LookupError, ValueError):
        hypothesis = template
    if hypothesis == template:
        raise Error(f"hypothesis_template={template!r:.60} has no {{}} in place of the label, as in {TEMPLATE!r}.")
    return hypothesis


def _target(task: Any, separate: bool) -> int | str:
    """Return the target of the pairs: entailment, or entailment minus contradiction, the last or the first class."""
    entailment = [index for label, index in task.labels.items() if label.lower().startswith("entail")]
    if not isinstance(task, Text) or not entailment:
        raise Error(
            f"model has the labels {', '.join(map(repr, task.labels)) or 'of no kind'}, none of which is entailment: "
            "give a model that was trained on entailment, or set config.label2id and config.id2label."
        )
    chosen = entailment[0]
    return f"{chosen} - {task.classes - 1 if chosen == 0 else 0}" if separate else chosen
