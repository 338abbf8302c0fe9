"""What is measured: scores for every sample, then the points of its curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..attribution import Method
from ..engine.memory import out_of_memory
from ..errors import Error, NotApplicable
from ..tasks.output_heads import OutputHead
from ..tasks.task import Task
from .protocol import Plan, Protocol, plan
from .samples import Sample
from .stream import Stream

LEAVE_ONE_OUT = "leave-one-out"
"""The yardstick: a feature's score is how much the target's logit falls without it, asked of the model itself."""


def clean_logits(task: Task, stream: Stream, samples: Sequence[Sample], mask: str) -> np.ndarray:
    """Return the logits of whole inputs; one that is not finite is named."""
    whole = [task.masked(one.encoded, np.ones((1, len(one.encoded)), dtype=bool), mask) for one in samples]
    logits = np.concatenate(stream.logits(whole))
    _check(samples, logits, "the model's answer")
    return logits


def leave_one_out(
    task: Task,
    stream: Stream,
    samples: Sequence[Sample],
    protocol: Protocol,
    mask: str,
    targets: Sequence[int],
    numbers: Sequence[float],
) -> list[np.ndarray]:
    """Return for each sample how much the target's logit falls without each of its features."""
    places = [np.flatnonzero(one.maskable(protocol)) for one in samples]
    parts = []
    for one, where in zip(samples, places, strict=True):
        kept = np.ones((len(where), len(one.encoded)), dtype=bool)
        kept[np.arange(len(where)), where] = False
        parts.append(task.masked(one.encoded, kept, mask))
    found = []
    for i, logits in enumerate(stream.logits(parts)):
        scores = np.zeros(len(samples[i].encoded))
        scores[places[i]] = numbers[i] - logits[:, targets[i]]
        found.append(scores)
    return found


def attributions(
    task: Task, method: Method, samples: Sequence[Sample], targets: Sequence[int]
) -> tuple[list[np.ndarray], list[float]]:
    """Return a method's scores for every feature of every sample, and the explained numbers.

    Samples that do not fit into memory together are explained in halves.
    """
    try:
        found = _applied(task, method, samples, targets)
    except NotApplicable:
        raise
    except (Error, RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            if isinstance(error, Error):
                raise Error(_culprit(task, method, samples, targets, error)) from None
            raise
        if len(samples) == 1:
            raise Error(f"{samples[0].describe()}, {method.name}: it does not fit into memory.") from None
        half = len(samples) // 2
        parts = (slice(half), slice(half, None))
        (first, a), (second, b) = (attributions(task, method, samples[part], targets[part]) for part in parts)
        return first + second, a + b
    each, output = found
    _check(samples, each, method.name)
    return each, output


def _applied(
    task: Task, method: Method, samples: Sequence[Sample], targets: Sequence[int]
) -> tuple[list[np.ndarray], list[float]]:
    """Return the scores of each sample's features, and the explained numbers."""
    inputs = task.batch([one.encoded for one in samples])
    found = method.apply(task.model, inputs, list(targets))
    scores = task.joined(inputs, found.scores).double().cpu().numpy()
    each = [row[task.own(one.encoded, inputs)] for row, one in zip(scores, samples, strict=True)]
    return each, found.output.double().cpu().tolist()


def _culprit(task: Task, method: Method, samples: Sequence[Sample], targets: Sequence[int], error: Error) -> str:
    """Return the message of an error with the sample that causes it."""
    for one, target in zip(samples, targets, strict=True):
        try:
            _applied(task, method, [one], [target])
        except Error as alone:
            return f"{one.describe()}, {method.name}: {alone}"
    return f"{method.name}: {error}"


def _check(samples: Sequence[Sample], values: Sequence[np.ndarray] | np.ndarray, what: str) -> None:
    for one, row in zip(samples, values, strict=True):
        if not np.isfinite(row).all():
            raise Error(f"{one.describe()}: {what} has nan or inf.")


def curves(
    task: Task,
    stream: Stream,
    samples: Sequence[Sample],
    known: Sequence[dict[str, Any]],
    protocol: Protocol,
    mask: str,
) -> list[dict[str, dict[str, Any]]]:
    """Return for each sample what every method's points came to; all their rows make one stream."""
    plans = [
        {
            method: plan(np.array(scores), sample.maskable(protocol), protocol)
            for method, scores in scored["scores"].items()
        }
        for sample, scored in zip(samples, known, strict=True)
    ]
    parts = [
        task.masked(sample.encoded, np.concatenate([one.kept for one in own.values()]), mask)
        for sample, own in zip(samples, plans, strict=True)
    ]
    found = []
    for sample, scored, own, logits in zip(samples, known, plans, stream.logits(parts), strict=True):
        if not np.isfinite(logits).all():
            raise Error(f"{sample.describe()}: the model's answer has nan or inf when features are taken away.")
        each = np.split(logits.astype(np.float64), len(own))
        points = zip(own.items(), each, strict=True)
        found.append({method: _points(rows, one, scored["target"], task.head) for (method, one), rows in points})
    return found


def _points(logits: np.ndarray, one: Plan, target: int, head: OutputHead) -> dict[str, Any]:
    """Return the points of one method's curves on one sample; pruning begins with the whole input."""
    probabilities = head.probabilities(torch.from_numpy(logits))
    if probabilities is None:
        raise Error(f"A {head.name} head has no probabilities, which the curves are made of.")
    probability = probabilities[:, target].numpy()
    whole = probability[one.pruning][0]
    change = np.square(logits - logits[one.pruning][0]).sum(-1)
    return {
        "activation": probability[one.activation].tolist(),
        "pruning": change[one.pruning].tolist(),
        "pruning_probability": probability[one.pruning].tolist(),
        "comprehensiveness": float((whole - probability[one.without_top]).mean()),
        "sufficiency": float((whole - probability[one.only_top]).mean()),
    }
