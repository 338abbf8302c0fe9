"""One input, explained by several methods."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ..attribution import MethodLike, find, methods
from ..engine.memory import AUTO
from ..errors import Error
from ..results.explanations import Comparison
from ..tasks.task import Task
from .explain import explain


def compare(
    task: Task,
    inputs: Any,
    target: Any = None,
    *,
    methods: Sequence[MethodLike] | None = None,
    truncate: bool = False,
    batch_tokens: int | None = None,
    trusted: Collection[str] = (),
    checkpoint: str = AUTO,
    fingerprint: bool = False,
) -> Comparison:
    """Explain one input by several methods.

    Parameters
    ----------
    task
        What `conserva.load` returned, or a task made by hand.
    inputs
        One input, as the task takes it.
    target
        A label, a class index, a contrast "a - b", or None for the predicted class.
    methods
        Names of methods, with options as in "ig:steps=100", or rule sets; None for all of `conserva.methods()`.
    truncate, batch_tokens, trusted, checkpoint, fingerprint
        As in `conserva.explain`.

    Returns
    -------
    Comparison
        An explanation for each method that applies to the model, and why the others do not.

    Examples
    --------
    >>> found = conserva.compare(conserva.load(), "a joy.", methods=["gi", "ah+ln", "exact"])
    >>> found.methods
    ('gi', 'ah+ln', 'exact')
    """
    if isinstance(inputs, list) and isinstance(task, Task) and not task.is_one(inputs):
        raise Error("inputs is a list of inputs: compare methods on one input at a time, or use conserva.evaluate.")
    how: dict[str, Any] = {
        "truncate": truncate,
        "batch_tokens": batch_tokens,
        "trusted": trusted,
        "checkpoint": checkpoint,
        "fingerprint": fingerprint,
    }
    found, refused = [], dict[str, str]()
    for name, method in _chosen(methods).items():
        try:
            found.append(explain(task, inputs, target, method=method, **how))
        except Error as error:
            refused[name] = str(error)
    if not found:
        raise Error(next(iter(refused.values())))
    return Comparison(tuple(found), refused)


def _chosen(given: Sequence[MethodLike] | None) -> dict[str, MethodLike]:
    """Return the methods by the names that results give them, without repetitions."""
    if isinstance(given, str):
        raise Error(f"methods={given!r} is a string: give a list of names, as [{given!r}].")
    chosen = list(methods()) if given is None else list(given)
    if not chosen:
        raise Error("methods=[] asks for nothing: give at least one method, or None for all.")
    return {find(one).name: one for one in chosen}
