"""`conserva.compare`: one input explained by several methods."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ..attribution import MethodLike, find, methods
from ..engine.memory import AUTO
from ..errors import Error
from ..results.explanations import Comparison
from ..tasks.task import Task, require_task
from ..tasks.user_inputs import single_input
from .explain import explain


def compare(
    task: Task,
    inputs: Any,
    target: Any = None,
    *,
    methods: Sequence[MethodLike] | None = None,
    truncate: bool = False,
    windows: bool | tuple[int, int] = False,
    batch_tokens: int | None = None,
    trusted: Collection[str] = (),
    checkpoint: str = AUTO,
    fingerprint: bool = False,
) -> Comparison:
    """Explain one input by several methods.

    Parameters
    ----------
    task
        A task: the result of `conserva.load`, or an instance such as `conserva.Text(model, tokenizer)`.
    inputs
        A single input of the task.
    target
        A label, a class index, a contrast "a - b", or None for the predicted class.
    methods
        Method names, optionally with options, such as "ig:steps=100", or rule sets. None uses all of
        `conserva.methods()`.
    truncate, windows, batch_tokens, trusted, checkpoint, fingerprint
        As in `conserva.explain`.

    Returns
    -------
    Comparison
        One explanation for each method that applies to the model. `refused` says why the other methods do not.

    Examples
    --------
    >>> comparison = conserva.compare(conserva.load(), "a joy.", methods=["gi", "ah+ln", "exact"])
    >>> comparison.methods
    ('gi', 'ah+ln', 'exact')
    """
    require_task(task)
    inputs = single_input(task, inputs, "compare methods on one input at a time, or on many with conserva.evaluate")
    options: dict[str, Any] = {
        "truncate": truncate,
        "windows": windows,
        "batch_tokens": batch_tokens,
        "trusted": trusted,
        "checkpoint": checkpoint,
        "fingerprint": fingerprint,
    }
    explanations, refused = [], dict[str, str]()
    for name, method in _chosen(methods).items():
        try:
            explanations.append(explain(task, inputs, target, method=method, **options))
        except Error as error:
            refused[name] = str(error)
    if not explanations:
        raise Error(next(iter(refused.values())))
    return Comparison(tuple(explanations), refused)


def _chosen(given: Sequence[MethodLike] | None) -> dict[str, MethodLike]:
    """Return the methods by name, without duplicates. The names are those that results have in `method`."""
    if isinstance(given, str):
        raise Error(f"methods={given!r} is a string: give a list of names, such as [{given!r}].")
    chosen = list(methods()) if given is None else list(given)
    if not chosen:
        raise Error("methods=[] is empty: give at least one method, or None for all.")
    return {find(method).name: method for method in chosen}
