"""One input, explained by several methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..attribution import find, methods
from ..errors import Error
from ..results.explanations import Comparison
from ..tasks.task import Task
from .explain import explain


def compare(
    task: Task,
    given: Any,
    target: Any = None,
    *,
    methods: Sequence[str] | None = None,
    truncate: bool = False,
    batch_tokens: int | None = None,
) -> Comparison:
    """Explain one input by several methods.

    Parameters
    ----------
    task
        What `conserva.load` returned, or a task made by hand.
    given
        One input, as the task takes it.
    target
        A label, a class index, a contrast "a - b", or None for the predicted class.
    methods
        Names of methods, with options as in "ig:steps=100"; None for all of `conserva.methods()`.
    truncate
        Whether a text longer than the model takes is cut; otherwise it is refused.
    batch_tokens
        How many tokens are explained at once; None for what suits the device.

    Returns
    -------
    Comparison
        An explanation for each method that applies to the model, and why the others do not.

    Examples
    --------
    >>> found = conserva.compare(conserva.load(), "a joy.", methods=["gi", "ah+ln", "exact"])  # doctest: +SKIP
    >>> found.show()  # doctest: +SKIP
    """
    if isinstance(given, list) and isinstance(task, Task) and not task.is_one(given):
        raise Error("given is a list of inputs: compare methods on one input at a time, or use conserva.evaluate.")
    found, refused = [], dict[str, str]()
    for name in _names(methods):
        try:
            found.append(explain(task, given, target, name, truncate=truncate, batch_tokens=batch_tokens))
        except Error as error:
            refused[name] = str(error)
    if not found:
        raise Error(next(iter(refused.values())))
    return Comparison(tuple(found), refused)


def _names(given: Sequence[str] | None) -> list[str]:
    """Return the names of methods in the form in which results have them, without repetitions."""
    if isinstance(given, str):
        raise Error(f"methods={given!r} is a string: give a list of names, as [{given!r}].")
    names = list(methods()) if given is None else list(given)
    if not names:
        raise Error("methods=[] asks for nothing: give at least one method, or None for all.")
    return list(dict.fromkeys(find(name).name for name in names))
