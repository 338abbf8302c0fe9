"""Asynchronous batches: each batch is launched on the device before the results of the previous one are read back."""

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
    """The results of a batch, on the host."""

    scores: Tensor
    """Samples x positions, those of all of the task's inputs concatenated."""
    output: Tensor
    logits: Tensor
    ledger: Ledger[Tensor] | None


@dataclass(frozen=True)
class Batch:
    """A batch that was launched, whose results may still be computed or copied to the host."""

    rows: list[int]
    """The indices of its inputs in the list given by the user."""
    encoded: list[Encoded]
    targets: list[Any]
    columns: list[np.ndarray]
    """For each input, the columns of the scores that hold its features."""
    _transfer: Transfer
    """Scores, outputs, logits, the ledger's entries if there is a ledger, and last the flags of all checks."""
    _checks: Checks | None
    """The checks that the flags belong to; None for a replayed CUDA graph."""
    _again: Callable[[], Sequence[Tensor]]
    """Computes the batch eagerly. After a replay with a failed check, this raises the error of that check."""

    def read(self) -> Numbers:
        """Synchronise, and return the results on the host."""
        *numbers, flags = self._transfer.read()
        if self._checks is not None:
            self._checks.settle(flags.tolist())
        elif not flags.all():
            *numbers, _ = (x.cpu() for x in self._again())
        scores, output, logits, *entries = numbers
        ledger = Ledger.of(output, *entries) if entries else None
        return Numbers(scores, output, logits, ledger)


def launched(
    task: Task,
    method: Method,
    encoded: Sequence[Encoded],
    target: Any,
    batches: Iterable[list[int]],
    recorder: Recorder | None,
) -> Iterator[Batch]:
    """Explain batches, and yield each after the next one is launched, so that the device is never idle.

    A batch that does not fit into memory is halved. With a recorder, shapes that occur often are replayed.

    Parameters
    ----------
    encoded
        All inputs.
    target
        One target for all inputs, or a list with one per input.
    batches
        The indices of the inputs in each batch.
    recorder
        Captures and replays CUDA graphs; None computes every batch eagerly.
    task, method
        The task, and the method that explains.
    """
    if method.rules is None:
        recorder = None  # other methods synchronise with the host, which a CUDA graph cannot capture
    waiting, last = deque(batches), None
    while waiting:
        rows = waiting.popleft()
        targets = [target[i] for i in rows] if isinstance(target, list) else [target] * len(rows)
        batch = _launch(task, method, recorder, rows, [encoded[i] for i in rows], targets)
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
    task: Task, method: Method, recorder: Recorder | None, rows: list[int], encoded: list[Encoded], targets: list[Any]
) -> Batch | None:
    """Explain a batch without synchronising; return None if it does not fit into memory but can be halved."""
    with untouched(task.model):
        batch = _tried(task, method, recorder, rows, encoded, targets)
    # Outside of the except block the traceback no longer references the tensors of the failed attempt.
    if batch is None and recorder is not None and recorder.holds_memory:
        recorder.drop()
        return _launch(task, method, recorder, rows, encoded, targets)
    return batch


def _tried(
    task: Task, method: Method, recorder: Recorder | None, rows: list[int], encoded: list[Encoded], targets: list[Any]
) -> Batch | None:
    """Explain a batch; return None if memory ran out, and halving it or dropping recordings may help."""
    pending: list[Checks] = []
    aims = [task.resolve_target(target, item) for target, item in zip(targets, encoded, strict=True)]
    # Different targets are host values, which a CUDA graph would keep from its capture.
    aim = hashable(aims[0]) if all(each == aims[0] for each in aims) else None
    if aim is None:
        recorder = None

    def compute(inputs: Mapping[str, Tensor]) -> tuple[list[Tensor], None]:
        pending.append(Checks())
        with pending[-1]:
            result = method.apply(task.model, inputs, aims)
            scores, logits = _checked(task, method, inputs, result)
        ledger = result.ledger
        entries = () if ledger is None else (ledger.inputs, ledger.positions, ledger.biases)
        return [scores, result.output, logits, *entries, _flags(pending[-1], logits).all()], None

    def again() -> list[Tensor]:
        with untouched(task.model):
            numbers, _ = compute(inputs)
        pending[-1].settle()
        if recorder is not None:
            recorder.discard(key)
        return numbers

    try:
        inputs = task.batch(encoded)
        if recorder is None:
            ran = RunResult(*compute(inputs), is_replay=False)
        else:
            key = Recorder.key((method.name, aim, _without_pads(task, encoded, inputs)), inputs)
            ran = recorder.run(key, inputs, compute)
        numbers = ran.numbers
        if not ran.is_replay:
            numbers = [*numbers[:-1], _flags(pending[0], numbers[0])]  # one flag per check, to raise the right error
        columns = [task.feature_positions(item, inputs) for item in encoded]
        return Batch(rows, encoded, targets, columns, Transfer(numbers), None if ran.is_replay else pending[0], again)
    except Exception as error:
        may_fit = len(rows) > 1 or (recorder is not None and recorder.holds_memory)
        if not out_of_memory(error) or not may_fit:
            for checks in pending:
                checks.settle()  # a check that failed earlier may have caused this error
            raise
    return None


def _without_pads(task: Task, encoded: Sequence[Encoded], inputs: Mapping[str, Tensor]) -> tuple[bool, ...]:
    """Return for each of the task's inputs whether no sample is padded: models then drop the attention mask."""
    widths = zip(task.features, zip(*(item.parts for item in encoded), strict=True), strict=False)
    return tuple(all(part == inputs[name].shape[1] for part in parts) for name, parts in widths)


def _flags(checks: Checks, beside: Tensor) -> Tensor:
    """Return the pass flags of the checks as one boolean tensor, on the device of `beside`."""
    flags = [flag.to(beside.device) for flag in checks.flags()]
    return torch.stack(flags) if flags else beside.new_ones(1, dtype=torch.bool)


def _checked(
    task: Task, method: Method, inputs: Mapping[str, Tensor], attribution: Attribution
) -> tuple[Tensor, Tensor]:
    """Return the feature scores and the logits of a batch; raise if the method or the model gives none."""
    if attribution.logits is None:
        raise Error(f"{type(task.network).__name__} is not a classifier: its output has no logits.")
    try:
        scores = task.feature_scores(inputs, attribution.scores)
    except NotApplicable as error:
        raise Error(f"{method.name}: {error}") from None
    if method.rules is None:  # rule sets check their relevance themselves
        require(
            torch.isfinite(scores).all(),
            lambda: Error(f"method={method.name!r} gives nan or inf on this model: choose another method."),
        )
    return scores, attribution.logits
