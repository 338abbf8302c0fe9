"""From inputs to explanations."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any, cast, overload

import torch
from torch import Tensor

from .errors import Error
from .explanation import Entries, Explanation
from .methods import Attribution, Method, find
from .rules import RULE_SETS
from .tasks.task import Encoded, Task

if TYPE_CHECKING:
    import numpy as np

    from .datasets.graph import Graph


@overload
def explain(
    task: Task,
    inputs: str | Graph | np.ndarray,
    target: Any = ...,
    method: str = ...,
    *,
    truncate: bool = ...,
    batch_size: int = ...,
) -> Explanation: ...


@overload
def explain(
    task: Task,
    inputs: list[Any] | tuple[Any, ...],
    target: Any = ...,
    method: str = ...,
    *,
    truncate: bool = ...,
    batch_size: int = ...,
    progress: Callable[[int], None] | None = ...,
) -> list[Explanation]: ...


def explain(
    task: Task,
    inputs: Any,
    target: Any = None,
    method: str = "ah+ln",
    *,
    truncate: bool = False,
    batch_size: int = 32,
    progress: Callable[[int], None] | None = None,
) -> Explanation | list[Explanation]:
    """Explain one input, or many.

    Parameters
    ----------
    task
        What `conserva.load` returned, or `conserva.Text(model, tokenizer)`, or `conserva.Graph(model)`.
    inputs
        A text, a SMILES, an image or a graph, as the task takes it; or a list of them, which are batched by length and
        come back in their order.
    target
        A label, a class index, a contrast "a - b", or None for the predicted class. A list has one for each input.
    method
        One of `conserva.methods()`, with options as in "ig:steps=100" or "random:seed=3".
    truncate
        Whether texts longer than the model takes are cut; otherwise they are refused.
    batch_size
        How many inputs are explained at once.
    progress
        Called with the number of inputs done, after every batch.
    """
    if not isinstance(task, Task):
        raise Error(f"task={task!r} is no task: use conserva.load(...), conserva.Text(...) or conserva.Graph(...).")
    if batch_size < 1:
        raise Error(f"batch_size={batch_size} explains nothing: give 1 or more.")
    found = find(method)
    if not task.is_one(inputs) and not isinstance(inputs, (list, tuple)):
        raise Error(f"inputs={inputs!r:.60} is no {task.noun} that {task.name} takes, and no list of them.")
    many = [inputs] if task.is_one(inputs) else list(inputs)
    if isinstance(target, list) and len(target) != len(many):
        raise Error(
            f"target has {len(target)} entries for {len(many)} {task.noun}(s): give one for each, or one for all."
        )
    encoded = [task.encode(one, truncate=truncate) for one in many]
    results: list[Explanation | None] = [None] * len(many)
    for rows in _buckets(encoded, batch_size):
        wanted = [target[i] for i in rows] if isinstance(target, list) else [target] * len(rows)
        batch = task.batch([encoded[i] for i in rows])
        attribution = found.apply(task.model, batch, wanted)
        _check(task, found, batch, attribution)
        for row, i in enumerate(rows):
            results[i] = _explanation(task, encoded[i], wanted[row], found, attribution, row)
        if progress is not None:
            progress(len(rows))
    done = [result for result in results if result is not None]
    return done[0] if task.is_one(inputs) else done


def _buckets(encoded: Sequence[Encoded], size: int) -> Iterator[list[int]]:
    """Yield the numbers of inputs of similar length."""
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _check(task: Task, method: Method, inputs: Mapping[str, Tensor], attribution: Attribution) -> None:
    """Raise unless the method gave a score to every feature, and the model one to every class."""
    if attribution.logits is None:
        raise Error(f"{type(task.model).__name__} is no classifier: it gives no score for each class.")
    places_there = inputs[task.feature].shape[:2]
    found = attribution.scores.get(task.feature)
    if found is None or found.shape != places_there:
        places = " and ".join(f"{tuple(one.shape)} for {name}" for name, one in attribution.scores.items())
        raise Error(
            f"{method.name} gives scores of shape {places}, but the {task.noun}s have {tuple(places_there)} features: "
            f"{type(task.model).__name__} attends over other places than its features."
        )


def _explanation(
    task: Task, encoded: Encoded, target: Any, method: Method, attribution: Attribution, row: int
) -> Explanation:
    output = float(attribution.output[row])
    index, name = _class_of(task, target, attribution, row)
    ledger = attribution.ledger
    return Explanation(
        features=encoded.tokens,
        scores=tuple(attribution.scores[task.feature][row, : len(encoded)].tolist()),
        special=encoded.special,
        words=encoded.words,
        text=encoded.text,
        target=name,
        output=output,
        probability=None if index is None else _probability(cast(Tensor, attribution.logits)[row], index),
        ledger=None if ledger is None else Entries.of(
            output, float(ledger.inputs[row]), float(ledger.positions[row]), float(ledger.biases[row])
        ),
        method=method.name,
        model=task.name,
        provenance=_provenance(task, method),
        picture=encoded.picture,
    )  # fmt: skip


def _class_of(task: Task, target: Any, attribution: Attribution, row: int) -> tuple[int | None, str]:
    """Return the class that a target is, if it is one, and its name."""
    names = {index: label for label, index in task.labels.items()}
    logits = cast(Tensor, attribution.logits)[row]
    if target is None:
        target = int(logits.argmax())
    if isinstance(target, str):
        return task.labels.get(target.strip()), target
    if isinstance(target, int):
        target = target % logits.shape[-1]
        return target, names.get(target, str(target))
    return None, getattr(target, "__name__", str(target))


def _probability(logits: torch.Tensor, index: int) -> float:
    if logits.numel() == 1:
        return float(torch.sigmoid(logits.float())[0])
    return float(torch.softmax(logits.float(), -1)[index])


def _provenance(task: Task, method: Method) -> dict[str, Any]:
    """Return what one needs to repeat a result."""
    versions = {name: metadata.version(name) for name in ("conserva", "torch", "transformers")}
    rules = asdict(RULE_SETS[method.name]) if method.name in RULE_SETS else None
    dtype = str(next(task.model.parameters()).dtype).removeprefix("torch.")
    return {
        **versions,
        "python": platform.python_version(),
        "weights": task.fingerprint,
        "dtype": dtype,
        "rules": rules,
        "options": dict(method.options),
    }
