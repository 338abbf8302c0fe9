"""Checks and conversion of user inputs: texts, and lists with labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..datasets import Labelled, read_labelled
from ..errors import Error

if TYPE_CHECKING:
    from .task import Task


def refuse_surrogates(what: str, text: str) -> None:
    """Raise an `Error` for a text with a lone surrogate, which comes from a terminal or file in another encoding."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Error(
            f"{what}={text!r:.60} has half a character, a lone surrogate, as its character number {error.start + 1}: "
            "give the text as UTF-8."
        ) from None


def read_with_text_labels(path: str | Path) -> Labelled:
    """Read labelled texts from a file, with labels converted to strings: here numbers are texts too."""
    data = read_labelled(path)
    return data if data.labels is None else replace(data, labels=tuple(map(str, data.labels)))


def inputs_of(task: Task, given: Any) -> tuple[list[Any], bool]:
    """Return the inputs that a user gave as a list, and whether it was a single one.

    Several inputs may be given as any ordered collection: a list, a tuple, an array, a pandas Series, a generator.
    """
    single = task.as_input(given) if isinstance(given, Mapping) else given
    if task.is_single(single):
        return [single], True
    if isinstance(given, (str, bytes, Mapping, Set)) or hasattr(given, "columns") or not isinstance(given, Iterable):
        hint = "give one, or a list of them"
        if hasattr(given, "columns"):  # iterating over a DataFrame yields the names of its columns
            hint = "give a column of the table, or the rows of two as list(zip(table[a], table[b]))"
        raise Error(
            f"inputs={given!r:.60} is neither a {task.noun} that {task.name} accepts nor a list of them: {hint}."
        )
    many = [task.as_input(item) for item in given]
    if isinstance(given, tuple) and not (many and all(map(task.is_single, many))):
        return [given], True  # the task's own error for a tuple that is not one of its inputs
    return many, False


def labelled_inputs(task: Task, data: Any, takes: str) -> Labelled:
    """Return a list of inputs, or of (input, label), as labelled data; `takes` describes an input in messages."""
    if isinstance(data, Labelled):
        return data
    wanted = f"give a list of {takes}, or of ({takes}, label)"
    if not isinstance(data, Sequence) or isinstance(data, str) or not data:
        raise Error(f"data={data!r:.60} is not a list of inputs: {wanted}.")
    if all(map(task.is_single, data)):
        return Labelled(tuple(data), None, f"{task.noun}s")
    if all(isinstance(row, (tuple, list)) and len(row) == 2 and task.is_single(row[0]) for row in data):
        return Labelled(tuple(given for given, _ in data), tuple(label for _, label in data), f"{task.noun}s")
    raise Error(f"data has entries that are not inputs of {task.name}, or only some with a label: {wanted}.")
