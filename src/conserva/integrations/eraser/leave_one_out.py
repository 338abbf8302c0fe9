"""tau-LOO: whether scores and the effects of leaving one feature out have the same order (Attanasio et al. 2023)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._util.kendall import kendall_tau
from ...errors import Error
from ...evaluation.measure import clean_logits, leave_one_out
from ...evaluation.protocol import PROTOCOLS
from ...evaluation.samples import Sample
from ...evaluation.stream import Stream
from ...explaining.explained import class_of
from ...results.explanation import Explanation
from ...results.explanations import Explanations
from ...tasks.task import Task, require_task
from ...tasks.user_inputs import inputs_of

TOLERANCE = 1e-3
"""The relative difference of two computations of an output that is attributed to rounding."""


def tau_loo(
    task: Task, inputs: Any, explanations: Explanation | Explanations, *, mask: str | None = None
) -> float | list[float]:
    """Return Kendall's tau between the scores of the features and the decreases of the output without each of them.

    Features are removed as in `conserva.evaluate`; special tokens are not removed, and are not compared. The output is
    the logit of the target, of which the scores are parts; ferret's tau-LOO takes its probability.

    Parameters
    ----------
    task
        The task that was explained.
    inputs
        The inputs that were explained: one, or a list.
    explanations
        Their explanations, as `conserva.explain` returned them, with a class as target.
    mask
        How features are removed, as in `conserva.evaluate`. None uses the mask token, or "drop".

    Returns
    -------
    float or list of float
        From -1 to 1, corrected for ties (tau-b); nan if the scores or the effects are all equal. A list for a list of
        inputs.

    Examples
    --------
    >>> from conserva.integrations.eraser import tau_loo
    >>> task = conserva.load()
    >>> one = conserva.explain(task, "a gorgeous, witty, seductive movie.")
    >>> -1 <= tau_loo(task, "a gorgeous, witty, seductive movie.", one) <= 1
    True
    """
    require_task(task)
    many, is_one = inputs_of(task, inputs)
    given = [explanations] if isinstance(explanations, Explanation) else list(explanations)
    if len(given) != len(many) or is_one != isinstance(explanations, Explanation):
        raise Error(f"{len(many)} {task.noun}(s) and {len(given)} explanation(s): give one for each, both in a list.")
    chosen, protocol = task.mask(mask, PROTOCOLS["default"].masks), PROTOCOLS["default"]
    samples = [Sample(number, encoded, None) for number, encoded in enumerate(task.encode_all(many))]
    for sample, one in zip(samples, given, strict=True):
        if sample.encoded.tokens != one.features:
            raise Error(
                f"{sample.describe()} does not have the features of its explanation: give the inputs that were "
                "explained, and their explanations in tokens, before merged() or visible()."
            )
    if not samples:
        return []
    stream = Stream(task)
    logits = clean_logits(task, stream, samples, chosen)
    targets = [_target(task, sample, one, row) for sample, one, row in zip(samples, given, logits, strict=True)]
    outputs = [float(row[target]) for row, target in zip(logits, targets, strict=True)]
    effects = leave_one_out(task, stream, samples, protocol, chosen, targets, outputs)
    taus = []
    for sample, one, effect in zip(samples, given, effects, strict=True):
        kept = sample.maskable(protocol)
        taus.append(kendall_tau(np.array(one.scores)[kept], effect[kept]))
    return taus[0] if is_one else taus


def _target(task: Task, sample: Sample, explanation: Explanation, logits: np.ndarray) -> int:
    """Return the class that was explained, if its logit is the explained output."""
    index = class_of(task, explanation.target, sample.encoded, int(logits.argmax()), len(logits))
    if index is None:
        raise Error(f"{sample.describe()}: target={explanation.target!r} is not a class. Explain one class.")
    if abs(logits[index] - explanation.output) > TOLERANCE * max(1.0, abs(explanation.output)):
        raise Error(
            f"{sample.describe()}: the logit of {explanation.target!r} is {logits[index]:.4g}, and the explained "
            f"output {explanation.output:.4g}. Give the task and the input that were explained."
        )
    return index
