"""From inputs to explanations."""

from __future__ import annotations

import platform
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any, cast, overload

import torch
from torch import Tensor

from .batches import budget, by_length
from .errors import Error
from .explanation import Entries, Explanation
from .launches import launched
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
    batch_tokens: int | None = ...,
) -> Explanation: ...


@overload
def explain(
    task: Task,
    inputs: list[Any] | tuple[Any, ...],
    target: Any = ...,
    method: str = ...,
    *,
    truncate: bool = ...,
    batch_tokens: int | None = ...,
    progress: Callable[[int], None] | None = ...,
) -> list[Explanation]: ...


def explain(
    task: Task,
    inputs: Any,
    target: Any = None,
    method: str = "ah+ln",
    *,
    truncate: bool = False,
    batch_tokens: int | None = None,
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
    batch_tokens
        How many tokens are explained at once: rows of a batch times its longest, or one row that is longer. None for
        what suits the device. A batch that does not fit into memory is halved.
    progress
        Called with the number of inputs done, after every batch.
    """
    if not isinstance(task, Task):
        raise Error(f"task={task!r} is no task: use conserva.load(...), conserva.Text(...) or conserva.Graph(...).")
    tokens, found = budget(batch_tokens, task.model), find(method)
    if not task.is_one(inputs) and not isinstance(inputs, (list, tuple)):
        raise Error(f"inputs={inputs!r:.60} is no {task.noun} that {task.name} takes, and no list of them.")
    many = [inputs] if task.is_one(inputs) else list(inputs)
    if isinstance(target, list) and len(target) != len(many):
        raise Error(
            f"target has {len(target)} entries for {len(many)} {task.noun}(s): give one for each, or one for all."
        )
    encoded = [task.encode(one, truncate=truncate) for one in many]
    results: list[Explanation | None] = [None] * len(many)
    provenance = _provenance(task, found)
    lengths = [task.padded(len(one)) for one in encoded]
    for batch in launched(task, found, encoded, target, by_length(lengths, tokens)):
        attribution = batch.attribution()
        for row, i in enumerate(batch.rows):
            results[i] = _explanation(
                task, batch.encoded[row], batch.wanted[row], found, attribution, row, deepcopy(provenance)
            )
        if progress is not None:
            progress(len(batch.rows))
    done = [result for result in results if result is not None]
    return done[0] if task.is_one(inputs) else done


def _explanation(
    task: Task,
    encoded: Encoded,
    target: Any,
    method: Method,
    attribution: Attribution,
    row: int,
    provenance: dict[str, Any],
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
        provenance=provenance,
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
