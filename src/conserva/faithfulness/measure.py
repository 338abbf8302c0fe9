"""What is measured: scores for every sample, then the points of its curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import Error, NotApplicable
from ..methods import Attribution, Method
from ..tasks.text import Text
from .protocol import Plan, Protocol, plan
from .samples import Sample
from .stream import Row, Stream

LEAVE_ONE_OUT = "leave-one-out"
"""The yardstick: a feature's score is how much the target's logit falls without it, asked of the model itself."""


def rows_of(task: Text, sample: Sample, kept: np.ndarray, mask: str) -> list[Row]:
    """Return a sample with other features kept in each row, as rows of a stream."""
    made = task.masked(sample.encoded, kept, mask)
    return [{name: values[i] for name, values in made.items()} for i in range(len(kept))]


def clean_logits(task: Text, stream: Stream, samples: Sequence[Sample], mask: str) -> np.ndarray:
    """Return the logits of whole texts; one that is not finite is named."""
    whole = [rows_of(task, one, np.ones((1, len(one.encoded)), dtype=bool), mask)[0] for one in samples]
    logits = stream.logits(whole)
    _check(samples, logits, "the model's answer")
    return logits


def leave_one_out(
    task: Text, stream: Stream, sample: Sample, protocol: Protocol, mask: str, target: int, logit: float
) -> np.ndarray:
    """Return how much the target's logit falls without each feature."""
    maskable = sample.maskable(protocol)
    places = np.flatnonzero(maskable)
    kept = np.ones((len(places), len(maskable)), dtype=bool)
    kept[np.arange(len(places)), places] = False
    scores = np.zeros(len(maskable))
    scores[places] = logit - stream.logits(rows_of(task, sample, kept, mask))[:, target]
    return scores


def attributions(
    task: Text, method: Method, samples: Sequence[Sample], targets: Sequence[int]
) -> tuple[list[np.ndarray], list[float]]:
    """Return a method's scores for every token of every sample, and the explained numbers."""
    try:
        found = _applied(task, method, samples, targets)
    except NotApplicable:
        raise
    except Error as error:
        raise Error(_culprit(task, method, samples, targets, error)) from None
    scores = found.scores["input_ids"].double().cpu().numpy()
    _check(samples, scores, method.name)
    each = [scores[i, : len(one.encoded)] for i, one in enumerate(samples)]
    return each, found.output.double().cpu().tolist()


def _applied(task: Text, method: Method, samples: Sequence[Sample], targets: Sequence[int]) -> Attribution:
    inputs = task.batch([one.encoded for one in samples])
    found = method.apply(task.model, inputs, list(targets))
    shape = tuple(inputs["input_ids"].shape)
    if "input_ids" not in found.scores or tuple(found.scores["input_ids"].shape) != shape:
        raise NotApplicable(f"{method.name} gives no score to each token: the model attends over other places.")
    return found


def _culprit(task: Text, method: Method, samples: Sequence[Sample], targets: Sequence[int], error: Error) -> str:
    """Return the message of an error with the sample that causes it."""
    for one, target in zip(samples, targets, strict=True):
        try:
            _applied(task, method, [one], [target])
        except Error as alone:
            return f"{one.describe()}, {method.name}: {alone}"
    return f"{method.name}: {error}"


def _check(samples: Sequence[Sample], values: np.ndarray, what: str) -> None:
    for one, row in zip(samples, values, strict=True):
        if not np.isfinite(row).all():
            raise Error(f"{one.describe()}: {what} has nan or inf.")


def curves(
    task: Text,
    stream: Stream,
    samples: Sequence[Sample],
    known: Sequence[dict[str, Any]],
    protocol: Protocol,
    mask: str,
) -> list[dict[str, dict[str, Any]]]:
    """Return for each sample what every method's points came to; all their rows make one stream."""
    plans: list[tuple[int, str, Plan]] = []
    rows: list[Row] = []
    for i, (sample, scored) in enumerate(zip(samples, known, strict=True)):
        for method, scores in scored["scores"].items():
            plans.append((i, method, plan(np.array(scores), sample.maskable(protocol), protocol)))
            rows += rows_of(task, sample, plans[-1][2].kept, mask)
    logits = stream.logits(rows)
    found: list[dict[str, dict[str, Any]]] = [{} for _ in samples]
    start = 0
    for i, method, one in plans:
        own = logits[start : start + len(one.kept)].astype(np.float64)
        start += len(one.kept)
        if not np.isfinite(own).all():
            raise Error(f"{samples[i].describe()}: the model's answer has nan or inf when features are taken away.")
        found[i][method] = _points(own, one, known[i]["target"])
    return found


def _points(logits: np.ndarray, one: Plan, target: int) -> dict[str, Any]:
    """Return the points of one method's curves on one sample; pruning begins with the whole text."""
    probability = _probabilities(logits)[:, target]
    whole = probability[one.pruning][0]
    change = np.square(logits - logits[one.pruning][0]).sum(-1)
    return {
        "activation": probability[one.activation].tolist(),
        "pruning": change[one.pruning].tolist(),
        "pruning_probability": probability[one.pruning].tolist(),
        "comprehensiveness": float((whole - probability[one.without_top]).mean()),
        "sufficiency": float((whole - probability[one.only_top]).mean()),
    }


def _probabilities(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    found: np.ndarray = raised / raised.sum(-1, keepdims=True)
    return found
