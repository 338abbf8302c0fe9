"""The measurements of an evaluation: scores of every sample, then the points of its curves."""

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
from .additional import Additional
from .protocol import Plan, Protocol, plan
from .removal_ranks import linear_datamodelling, subsets, tau
from .samples import Sample
from .stream import Stream

LEAVE_ONE_OUT = "leave-one-out"
"""A reference: the score of a feature is the decrease of the target's logit when it is removed."""


def clean_logits(task: Task, stream: Stream, samples: Sequence[Sample], mask: str) -> np.ndarray:
    """Return the logits of complete inputs; raise an `Error` with the sample if they are not finite."""
    complete = [task.masked(sample.encoded, np.ones((1, len(sample.encoded)), dtype=bool), mask) for sample in samples]
    logits = np.concatenate(stream.logits(complete))
    _check(samples, logits, "the model's output")
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
    """Return for each sample the decrease of the target's logit without each of its features."""
    maskable = [np.flatnonzero(sample.maskable(protocol)) for sample in samples]
    parts = []
    for sample, positions in zip(samples, maskable, strict=True):
        kept = np.ones((len(positions), len(sample.encoded)), dtype=bool)
        kept[np.arange(len(positions)), positions] = False
        parts.append(task.masked(sample.encoded, kept, mask))
    results = []
    for i, logits in enumerate(stream.logits(parts)):
        scores = np.zeros(len(samples[i].encoded))
        scores[maskable[i]] = numbers[i] - logits[:, targets[i]]
        results.append(scores)
    _check(samples, results, "the model's output without one feature")
    return results


def attributions(
    task: Task, method: Method, samples: Sequence[Sample], targets: Sequence[int]
) -> tuple[list[np.ndarray], list[float]]:
    """Return a method's scores for the features of every sample, and the explained outputs.

    A batch that does not fit into memory is split in halves.
    """
    try:
        each, output = _applied(task, method, samples, targets)
    except NotApplicable:
        raise
    except (Error, RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            if isinstance(error, Error):
                raise Error(_located(task, method, samples, targets, error)) from None
            raise
        if len(samples) == 1:
            raise Error(f"{samples[0].describe()}, {method.name}: it does not fit into memory.") from None
        half = len(samples) // 2
        parts = (slice(half), slice(half, None))
        (first, a), (second, b) = (attributions(task, method, samples[part], targets[part]) for part in parts)
        return first + second, a + b
    _check(samples, each, method.name)
    return each, output


def _applied(
    task: Task, method: Method, samples: Sequence[Sample], targets: Sequence[int]
) -> tuple[list[np.ndarray], list[float]]:
    """Return the scores of each sample's features, and the explained outputs."""
    inputs = task.batch([sample.encoded for sample in samples])
    attribution = method.apply(task.model, inputs, list(targets))
    scores = task.feature_scores(inputs, attribution.scores).double().cpu().numpy()
    each = [row[task.feature_positions(sample.encoded, inputs)] for row, sample in zip(scores, samples, strict=True)]
    return each, attribution.output.double().cpu().tolist()


def _located(task: Task, method: Method, samples: Sequence[Sample], targets: Sequence[int], error: Error) -> str:
    """Return the message of an error with the sample that causes it, found by applying the method to each."""
    for sample, target in zip(samples, targets, strict=True):
        try:
            _applied(task, method, [sample], [target])
        except Error as alone:
            return f"{sample.describe()}, {method.name}: {alone}"
    return f"{method.name}: {error}"


def _check(samples: Sequence[Sample], values: Sequence[np.ndarray] | np.ndarray, what: str) -> None:
    for sample, row in zip(samples, values, strict=True):
        if not np.isfinite(row).all():
            raise Error(f"{sample.describe()}: {what} has nan or inf.")


def curves(
    task: Task,
    stream: Stream,
    samples: Sequence[Sample],
    known: Sequence[dict[str, Any]],
    protocol: Protocol,
    mask: str,
    additional: Additional,
) -> list[dict[str, dict[str, Any]]]:
    """Return the points of every method for each sample, and its additional metrics that are defined.

    All masked inputs are evaluated in one stream.
    """
    plans = [
        {
            method: plan(np.array(scores), sample.maskable(protocol), protocol, additional.srg)
            for method, scores in scored["scores"].items()
        }
        for sample, scored in zip(samples, known, strict=True)
    ]
    drawn = [subsets(sample, protocol, additional.lds) for sample in samples]
    parts = [
        task.masked(sample.encoded, np.concatenate([*(rows.kept for rows in own.values()), kept]), mask)
        for sample, own, kept in zip(samples, plans, drawn, strict=True)
    ]
    results = []
    for sample, scored, own, kept, logits in zip(samples, known, plans, drawn, stream.logits(parts), strict=True):
        if not np.isfinite(logits).all():
            raise Error(f"{sample.describe()}: the model's output has nan or inf when features are removed.")
        values, of_subsets = np.split(logits.astype(np.float64), [len(logits) - len(kept)])
        target, maskable = scored["target"], sample.maskable(protocol)
        result = {}
        for (method, rows), each in zip(own.items(), np.split(values, len(own)), strict=True):
            scores = np.array(scored["scores"][method])
            found = {"lds": linear_datamodelling(scores, kept, maskable, of_subsets[:, target])}
            if additional.tau:
                found["tau"] = tau(scores, np.array(scored["drops"]), maskable, scored["output"])
            result[method] = {
                **_points(each, rows, target, task.head, additional.srg),
                **{metric: value for metric, value in found.items() if value is not None},
            }
        results.append(result)
    return results


def _points(logits: np.ndarray, rows: Plan, target: int, head: OutputHead, srg: bool) -> dict[str, Any]:
    """Return the points of one method's curves on one sample; pruning begins with the complete input."""
    probabilities = head.probabilities(torch.from_numpy(logits))
    if probabilities is None:
        raise Error(f"A {head.name} head has no probabilities, which curves need: give a classifier.")
    probability = probabilities[:, target].numpy()
    complete = probability[rows.pruning][0]
    change = np.square(logits - logits[rows.pruning][0]).sum(-1)
    points = {
        "activation": probability[rows.activation].tolist(),
        "pruning": change[rows.pruning].tolist(),
        "pruning_probability": probability[rows.pruning].tolist(),
        "comprehensiveness": float((complete - probability[rows.without_top]).mean()),
        "sufficiency": float((complete - probability[rows.only_top]).mean()),
    }
    if srg:
        least, least_probability = (values[rows.activation][::-1] for values in (logits[:, target], probability))
        points["least_first"] = least.tolist()
        for name, ends, values in (
            ("most_first", least, logits[:, target]),
            ("most_first_probability", least_probability, probability),
        ):
            points[name] = np.concatenate([ends[:1], values[rows.most_first], ends[-1:]]).tolist()
    return points
