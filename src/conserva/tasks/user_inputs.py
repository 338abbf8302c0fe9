"""Checks and conversion of user inputs: texts, and lists with labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

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

    Several inputs may be given as any ordered collection: a list, a tuple, an array, a pandas Series, a generator. But
    for tasks whose input can be a tuple of two texts, every tuple with texts is a single input: else the meaning of
    (text, text) and (text, text, text) would differ.
    """
    single = task.as_input(given) if isinstance(given, Mapping) else given  # a chat, or {"text": ..., "text_pair": ...}
    if task.is_single(single):
        return [single], True
    if isinstance(given, (str, bytes, Mapping, Set)) or hasattr(given, "columns") or not isinstance(given, Iterable):
        hint = ""
        if hasattr(given, "columns"):  # iterating over a DataFrame yields the names of its columns
            hint = ": give one of its columns, or the rows of two as list(zip(table[a], table[b]))"
        raise Error(
            f"inputs={given!r:.60} is neither a single {task.noun} that {task.name} accepts nor a list of them{hint}."
        )
    if isinstance(given, tuple) and (
        not given or (any(isinstance(item, str) for item in given) and task.is_single(("text", "text")))
    ):
        return [given], True  # `Task.encode` raises the error
    return [task.as_input(str(item) if isinstance(item, np.str_) else item) for item in given], False


def single_input(task: Task, given: Any, instead: str = "give one input") -> Any:
    """Return the single input that a user gave; raise an `Error` for several. `instead` says what to do then."""
    if isinstance(given, Iterator):
        raise Error(f"inputs={given!r:.60} is a generator: {instead}.")
    many, is_one = inputs_of(task, given)
    if not is_one:
        raise Error(f"inputs={given!r:.60} is not a single {task.noun} that {task.name} accepts: {instead}.")
    return many[0]


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
