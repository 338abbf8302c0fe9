"""Inputs as users give them: texts, and lists with labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..datasets import Labelled, read_labelled
from ..errors import Error

if TYPE_CHECKING:
    from .task import Task


def refuse_halves(what: str, text: str) -> None:
    """Refuse a text that holds half a character, as a terminal or a file in another encoding leaves it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Error(
            f"{what}={text!r:.60} holds half a character, its number {error.start + 1} (a lone surrogate): read or "
            "write the text again, as UTF-8."
        ) from None


def words_in(path: str | Path) -> Labelled:
    """Return the data of a file whose labels are words: a column of numbers has the words for them."""
    found = read_labelled(path)
    return found if found.labels is None else replace(found, labels=tuple(map(str, found.labels)))


def inputs_of(task: Task, data: Any, takes: str) -> Labelled:
    """Return a list of a task's inputs, or of (input, label), as data; `takes` says in messages what an input is."""
    if isinstance(data, Labelled):
        return data
    wanted = f"give a list of {takes}, or of ({takes}, label)"
    if not isinstance(data, Sequence) or isinstance(data, str) or not data:
        raise Error(f"data={data!r:.60} is not a list of inputs: {wanted}.")
    if all(map(task.is_one, data)):
        return Labelled(tuple(data), None, f"{task.noun}s")
    if all(isinstance(one, (tuple, list)) and len(one) == 2 and task.is_one(one[0]) for one in data):
        return Labelled(tuple(one for one, _ in data), tuple(label for _, label in data), f"{task.noun}s")
    raise Error(f"data has entries that are not inputs of {task.name}, or only some with a label: {wanted}.")
