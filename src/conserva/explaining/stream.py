"""Explanations of a stream of inputs of any length, in constant memory; inputs that fail do not end it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

from ..attribution import MethodLike, find
from ..engine.rules import DEFAULT
from ..errors import Error, NotApplicable
from ..replay.recorder import recorder_of
from ..results.explanation import Explanation
from ..tasks.task import Task
from .explain import explain_with

FEWEST, MOST = 16, 512
"""The number of inputs that are read ahead, so that inputs of similar length share a batch."""

SECONDS = 5.0
"""How long the explanations of these inputs may take: until then, none of them is yielded."""

PROBES = 3
"""If so many inputs that can be encoded fail at first, the error is about the model, the method or the target."""

Outcome: TypeAlias = "Explanation | Error"


def explain_stream(
    task: Task,
    inputs: Iterable[Any],
    target: Callable[[list[Any]], Any],
    *,
    method: MethodLike = DEFAULT,
    truncate: bool = False,
    windows: bool | tuple[int, int] = False,
    batch_tokens: int | None = None,
    fingerprint: bool = False,
) -> Iterator[Outcome]:
    """Yield the explanations of an iterable of inputs in order, holding at most `MOST` inputs in memory.

    For an input that cannot be explained, its `Error` is yielded. An error that is not about one input is raised: the
    method does not apply to the model, or the first inputs all fail although they can be encoded.

    Parameters
    ----------
    inputs
        Inputs of the task. An `Error` among them is yielded in its place.
    target
        Maps a list of inputs to their target, in the form that `explain` accepts.
    task, method, truncate, windows, batch_tokens, fingerprint
        As in `explain`.
    """
    chosen = find(method, tokens=task.special_ids)
    with recorder_of(task.model) as recorder:

        def explain_all(chunk: list[Any]) -> list[Explanation]:
            many = explain_with(
                recorder,
                task,
                chunk,
                target(chunk),
                chosen,
                truncate,
                batch_tokens,
                windows=windows,
                fingerprint=fingerprint,
            )
            assert isinstance(many, list)
            return many

        explained = _Explained(explain_all, lambda item: task.encode(item, truncate=truncate or bool(windows)))
        rest = iter(inputs)
        size = FEWEST
        while chunk := list(islice(rest, size)):
            began = time.monotonic()
            outcomes = iter(explained.each([item for item in chunk if not isinstance(item, Error)]))
            size = _next_size(size, time.monotonic() - began)
            yield from (item if isinstance(item, Error) else next(outcomes) for item in chunk)


def _next_size(size: int, seconds: float) -> int:
    """Return the number of inputs to read ahead, after so many took so long."""
    if seconds > SECONDS:
        return max(1, size // 2)
    return min(MOST, 2 * size) if seconds < SECONDS / 2 else size


class _Explained:
    """Explains lists of inputs, and finds those that fail by halving the list."""

    def __init__(self, explain_all: Callable[[list[Any]], list[Explanation]], encode: Callable[[Any], object]) -> None:
        self._explain_all, self._encode = explain_all, encode
        self._has_worked = False

    def each(self, chunk: list[Any]) -> Sequence[Outcome]:
        """Return the explanation of each input, or why it cannot be explained."""
        if not chunk:
            return []
        many = self._tried(chunk)
        if not isinstance(many, Error):
            return many
        if not self._has_worked:
            self._probe(chunk)
        if len(chunk) == 1:
            return [many]
        middle = len(chunk) // 2
        return [*self.each(chunk[:middle]), *self.each(chunk[middle:])]

    def _tried(self, chunk: list[Any]) -> list[Explanation] | Error:
        try:
            many = self._explain_all(chunk)
        except NotApplicable:
            raise
        except Error as error:
            return error
        self._has_worked = True
        return many

    def _probe(self, chunk: list[Any]) -> None:
        """Raise an `Error` that the first inputs have in common, if they can be encoded."""
        errors: list[Error] = []
        for item in chunk:
            try:
                self._encode(item)
            except Error:
                continue
            outcome = self._tried([item])
            if not isinstance(outcome, Error):
                return
            errors.append(outcome)
            if len(errors) == PROBES:
                break
        if errors:
            raise errors[0]
