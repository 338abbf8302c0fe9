"""Explanations of encoded inputs: from batches of numbers to results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from .._util.versions import versions
from ..attribution import Method
from ..engine.ledger import Ledger
from ..replay.recorder import Recorder
from ..results.explanation import ClassScore, Explanation, Sink
from ..tasks.batches import by_length
from ..tasks.task import Encoded, Task
from .launches import Batch, launched

MOST_CLASSES = 10
"""The number of classes in `Explanation.classes`, unless the target is another one."""


def explained(
    task: Task,
    method: Method,
    encoded: Sequence[Encoded],
    target: Any,
    tokens: int,
    recorder: Recorder | None,
    provenance: Mapping[str, Any],
    progress: Callable[[int], None] | None = None,
) -> list[Explanation]:
    """Explain encoded inputs in batches of similar length, and return the explanations in the order of the inputs.

    Parameters
    ----------
    target
        One target for all inputs, or a list with one per input.
    tokens
        The maximum number of tokens in a batch.
    recorder
        Captures and replays CUDA graphs; None computes every batch eagerly.
    progress
        Called after every batch with the number of inputs in it.
    task, method, encoded, provenance
        The task, the method, the inputs, and what each explanation has as its provenance.
    """
    results: list[Explanation | None] = [None] * len(encoded)
    padded = {length: task.padded(length) for length in set(map(len, encoded))}
    lengths = [padded[len(item)] for item in encoded]
    for batch in launched(task, method, encoded, target, by_length(lengths, tokens), recorder):
        for i, explanation in zip(batch.rows, _explanations(task, method, batch, provenance), strict=True):
            results[i] = explanation
        if progress is not None:
            progress(len(batch.rows))
    return [result for result in results if result is not None]


def _explanations(task: Task, method: Method, batch: Batch, provenance: Mapping[str, Any]) -> Iterator[Explanation]:
    """Yield an explanation for each input of a batch."""
    numbers = batch.read()
    scores, output, logits = numbers.scores.numpy(), numbers.output.tolist(), numbers.logits
    probabilities = task.head.probabilities(logits)
    highest = logits.argmax(-1).tolist()
    ledgers: Sequence[Ledger[float] | None] = [None] * len(output)
    if numbers.ledger is not None:
        ledgers = numbers.ledger.per_sample(numbers.output)
    for row, (encoded, target) in enumerate(zip(batch.encoded, batch.targets, strict=True)):
        index = class_of(task, target, encoded, highest[row], logits.shape[-1])
        feature_scores = tuple(scores[row][batch.columns[row]].tolist())
        shares = None if probabilities is None else probabilities[row]
        yield Explanation(
            features=encoded.tokens,
            scores=feature_scores,
            special=encoded.special,
            words=encoded.words,
            text=encoded.text,
            target=task.target_title(target, index, encoded),
            output=output[row],
            probability=None if index is None or shares is None else float(shares[index]),
            ledger=ledgers[row],
            method=method.name,
            model=task.name,
            provenance={key: dict(value) if isinstance(value, dict) else value for key, value in provenance.items()},
            picture=encoded.picture,
            sections=encoded.sections,
            sink=None if encoded.sink is None else Sink.of(encoded.sink, encoded.tokens, feature_scores),
            offsets=encoded.offsets,
            unknown=encoded.unknown,
            classes=class_scores(task, encoded, logits[row], shares, index),
        )


def class_scores(
    task: Task, encoded: Encoded, logits: Tensor, probabilities: Tensor | None, index: int | None
) -> tuple[ClassScore, ...]:
    """Return the highest outputs of one input, and that of the class `index`, with their probabilities.

    Classes with a probability of 0 are left out: they are impossible, as spans outside of a question's context are.
    """
    chosen = logits.topk(min(MOST_CLASSES, len(logits))).indices.tolist()
    chosen = chosen if index is None or index in chosen else [*chosen, index]
    among = [None] * len(chosen) if probabilities is None else probabilities[chosen].tolist()
    return tuple(
        ClassScore(task.target_title(None, i, encoded), float(logits[i]), probability)
        for i, probability in zip(chosen, among, strict=True)
        if probability != 0 or i == index
    )


def class_of(task: Task, target: Any, encoded: Encoded, highest: int, classes: int) -> int | None:
    """Return the class index of a target, or None if the target is not a single class.

    Parameters
    ----------
    target
        The target as given by the user. None means the predicted class, `highest`.
    highest
        The index of the highest logit.
    classes
        The number of logits.
    task, encoded
        The task and the encoded input, which resolve the target.
    """
    aimed = task.resolve_target(target, encoded)
    if aimed is None:
        return highest
    if isinstance(aimed, str):
        label = aimed.strip()
        known = task.labels.get(label)
        if known is not None or not label.removeprefix("-").isdecimal():
            return known
        aimed = int(label)
    return aimed % classes if isinstance(aimed, int) else None


def provenance_of(task: Task, method: Method, fingerprint: bool) -> dict[str, Any]:
    """Return the versions and settings that are needed to reproduce a result, with a weight hash if `fingerprint`."""
    dtype = str(next(task.model.parameters()).dtype).removeprefix("torch.")
    return {
        **versions(),
        **({"weights": task.fingerprint} if fingerprint else {}),
        "dtype": dtype,
        "rules": None if method.rules is None else method.rules.to_dict(),
        "head": task.head.name,
        "options": dict(method.options),
    }
