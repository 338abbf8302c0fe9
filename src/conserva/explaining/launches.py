"""Batches of inputs on their way through a method: the next is launched before the last is read back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..attribution import Attribution, Method
from ..engine.checks import Checks, require
from ..engine.ledger import Ledger
from ..engine.memory import out_of_memory
from ..engine.transfer import Transfer
from ..engine.untouched import untouched
from ..errors import Error, NotApplicable
from ..replay.recorder import Recorder, RunResult, hashable
from ..tasks.task import Encoded, Task


class Numbers(NamedTuple):
    """What came of a batch, on the host."""

    scores: Tensor
    """Samples x places of all inputs."""
    output: Tensor
    logits: Tensor
    ledger: Ledger[Tensor] | None


@dataclass(frozen=True)
class Batch:
    """Inputs that are being explained, and the numbers that will come of it."""

    rows: list[int]
    encoded: list[Encoded]
    wanted: list[Any]
    own: list[np.ndarray]
    """For each input, where among the scores its own features stand."""
    _transfer: Transfer
    """Scores, outputs, logits, the ledger's entries if there are any; last the flags of all checks."""
    _checks: Checks | None
    """The checks that the flags belong to; None for a replay."""
    _again: Callable[[], Sequence[Tensor]]
    """Makes the numbers without a recording: where a replay's flags say that something is wrong, this says what."""

    def read(self) -> Numbers:
        """Wait for the numbers, and return them on the host."""
        *numbers, flags = self._transfer.read()
        if self._checks is not None:
            self._checks.settle(flags.tolist())
        elif not flags.all():
            *numbers, _ = (x.cpu() for x in self._again())
        scores, output, logits, *books = numbers
        ledger = Ledger.of(output, *books) if books else None
        return Numbers(scores, output, logits, ledger)


def launched(
    task: Task,
    method: Method,
    encoded: Sequence[Encoded],
    target: Any,
    batches: Iterable[list[int]],
    recorder: Recorder | None,
) -> Iterator[Batch]:
    """Yield batches that are explained, each as soon as the next is on its way: so the device never waits.

    A batch that does not fit into memory is halved. With a recorder, those of a shape that comes often are replayed.
    """
    if method.rules is None:
        recorder = None  # other methods read numbers on the host on their way
    waiting, last = deque(batches), None
    while waiting:
        rows = waiting.popleft()
        wanted = [target[i] for i in rows] if isinstance(target, list) else [target] * len(rows)
        batch = _launch(task, method, recorder, rows, [encoded[i] for i in rows], wanted)
        if batch is None:
            middle = len(rows) // 2
            waiting.extendleft((rows[middle:], rows[:middle]))
            continue
        if last is not None:
            yield last
        last = batch
    if last is not None:
        yield last


def _launch(
    task: Task, method: Method, recorder: Recorder | None, rows: list[int], encoded: list[Encoded], wanted: list[Any]
) -> Batch | None:
    """Explain a batch, without waiting for it; None if there are several inputs and too little memory."""
    with untouched(task.model):
        found = _tried(task, method, recorder, rows, encoded, wanted)
    # Out here the traceback is gone, and with it the tensors of the failed try.
    if found is None and recorder is not None and recorder.holds_memory:
        recorder.drop()
        return _launch(task, method, recorder, rows, encoded, wanted)
    return found


def _tried(
    task: Task, method: Method, recorder: Recorder | None, rows: list[int], encoded: list[Encoded], wanted: list[Any]
) -> Batch | None:
    """Explain a batch; None if there is too little memory, and there are several inputs or recordings."""
    asked: list[Checks] = []
    aims = [task.aim(target, one) for target, one in zip(wanted, encoded, strict=True)]
    # Targets that differ are numbers of the host, which a recording would keep.
    aim = hashable(aims[0]) if all(one == aims[0] for one in aims) else None
    if aim is None:
        recorder = None

    def compute(inputs: Mapping[str, Tensor]) -> tuple[list[Tensor], None]:
        asked.append(Checks())
        with asked[-1]:
            found = method.apply(task.model, inputs, aims)
            scores, logits = _checked(task, method, inputs, found)
        books = () if found.ledger is None else (found.ledger.inputs, found.ledger.positions, found.ledger.biases)
        return [scores, found.output, logits, *books, _flags(asked[-1], logits).all()], None

    def again() -> list[Tensor]:
        with untouched(task.model):
            found, _ = compute(inputs)
        asked[-1].settle()
        if recorder is not None:
            recorder.discard(key)
        return found

    try:
        inputs = task.batch(encoded)
        if recorder is None:
            ran = RunResult(*compute(inputs), is_replay=False)
        else:
            key = Recorder.key((method.name, aim, _without_pads(task, encoded, inputs)), inputs)
            ran = recorder.run(key, inputs, compute)
        numbers = ran.numbers
        if not ran.is_replay:
            numbers = [*numbers[:-1], _flags(asked[0], numbers[0])]  # each by itself: it may have something to say
        own = [task.own(one, inputs) for one in encoded]
        return Batch(rows, encoded, wanted, own, Transfer(numbers), None if ran.is_replay else asked[0], again)
    except Exception as error:
        may_fit = len(rows) > 1 or (recorder is not None and recorder.holds_memory)
        if not out_of_memory(error) or not may_fit:
            for checks in asked:
                checks.settle()  # what was found before comes first
            raise
    return None


def _without_pads(task: Task, encoded: Sequence[Encoded], inputs: Mapping[str, Tensor]) -> tuple[bool, ...]:
    """Return for each of the task's inputs whether none is padded: there models leave masks away."""
    widths = zip(task.features, zip(*(one.parts for one in encoded), strict=True), strict=False)
    return tuple(all(part == inputs[name].shape[1] for part in parts) for name, parts in widths)


def _flags(checks: Checks, beside: Tensor) -> Tensor:
    """Return what tells whether the checks passed, in one tensor beside another."""
    flags = [flag.to(beside.device) for flag in checks.flags()]
    return torch.stack(flags) if flags else beside.new_ones(1, dtype=torch.bool)


def _checked(
    task: Task, method: Method, inputs: Mapping[str, Tensor], attribution: Attribution
) -> tuple[Tensor, Tensor]:
    """Return the scores of all features and of every class, and raise unless there are such."""
    if attribution.logits is None:
        raise Error(f"{type(task.network).__name__} is not a classifier: it gives no score for each class.")
    try:
        scores = task.joined(inputs, attribution.scores)
    except NotApplicable as error:
        raise Error(f"{method.name}: {error}") from None
    if method.rules is None:  # which look for themselves
        require(
            torch.isfinite(scores).all(),
            lambda: Error(f"{method.name} gives scores that are nan or inf on this model: choose another method."),
        )
    return scores, attribution.logits
