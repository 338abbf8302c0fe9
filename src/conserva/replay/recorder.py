"""The same computation on batches of one shape, again and again: recorded as a CUDA graph, replayed without Python.

A short batch keeps a GPU busy for less time than Python takes to launch its kernels. A graph launches them all at once.
A recorder lives as long as one call of the library, or as long as the user's `conserva.replaying` block: inside, the
model's structure and the functions that it calls stay the same. A shape that came several times is recorded, and the
recording is used if it gives what the plain computation gives, bit for bit, on a batch that it was not recorded with.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from ..engine.operations.mask_history import MaskHistory
from .cuda_graph import Compute, Graph, GraphPool, copied
from .recordable import is_observed, recordable_device

ComputeWithNote: TypeAlias = Callable[[Mapping[str, Tensor]], tuple[Sequence[Tensor], Any]]
"""A computation: inputs -> numbers on the device, and a note, which is the same for all inputs of one shape."""

AFTER = 2
"""How many batches of a shape are computed before one is recorded: a recording costs as much as two or three."""

MOST_SHAPES = 256
"""How many shapes are counted before counting starts anew."""

MOST = 32
"""How many shapes are recorded: each holds memory for as long as its recorder lives."""


class Recording(Protocol):
    """A computation that can be run again on other numbers of the same shape."""

    bytes: int
    """The memory that it holds on the device."""

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """Return what the computation makes of the inputs."""


class RunResult(NamedTuple):
    """What came of a batch."""

    numbers: Sequence[Tensor]
    note: Any
    is_replay: bool


class _Trusted(NamedTuple):
    """A recording that agreed with the plain computation, and the note that goes with its numbers."""

    recording: Recording
    note: Any


@dataclass
class _Shape:
    """What is known of batches of one shape."""

    came: int = 0
    is_unfit: bool = False
    inputs: Mapping[str, Tensor] | None = None
    """A copy of the last batch, to record with; None before there were enough, and where it is unfit."""
    passes: MaskHistory = field(default_factory=MaskHistory)


class Recorder:
    """Replays batches of shapes that come often. For one thread at a time."""

    def __init__(
        self,
        device: torch.device,
        weights: Sequence[Tensor] = (),
        record: Callable[[Compute, Mapping[str, Tensor], Any], Recording] = Graph,
        pool: Callable[[torch.device], Any] = GraphPool,
    ) -> None:
        """Record on a device. A computation that writes to the weights, or draws random numbers, is not recorded."""
        self._device, self._weights = device, weights
        self._record, self._make_pool = record, pool
        self._shapes: dict[Hashable, _Shape] = {}
        self._trusted: dict[Hashable, _Trusted] = {}
        self._pool: Any = None
        self._bytes = 0
        self._may_record = True

    @staticmethod
    def key(what: Hashable, inputs: Mapping[str, Tensor]) -> Hashable:
        """Return the cache key of a computation; `what` tells it from others on inputs of the same shape."""
        # Other kernels may read numbers that lie in another order.
        forms = tuple((name, x.shape, x.dtype, x.is_contiguous() or x.stride()) for name, x in inputs.items())
        return (what, forms)

    @property
    def holds_memory(self) -> bool:
        """Whether there are recordings."""
        return bool(self._trusted)

    def run(self, key: Hashable, inputs: Mapping[str, Tensor], compute: ComputeWithNote) -> RunResult:
        """Return what `compute` makes of the inputs, by a replay where there is a recording for this key."""
        if any(x.device != self._device for x in inputs.values()):
            return RunResult(*compute(inputs), is_replay=False)  # what lies on the host may be read there, by Python
        trusted = self._trusted.get(key)
        if trusted is not None:
            return RunResult(trusted.recording.replay(inputs), trusted.note, is_replay=True)
        if not self._may_record:
            return RunResult(*compute(inputs), is_replay=False)
        shape = self._shape(key)
        is_due = shape.inputs is not None and len(self._trusted) < MOST
        before = self._state() if is_due else None
        with shape.passes.during():
            numbers, note = compute(inputs)
        shape.came += 1
        if is_due:
            if self._state() != before:
                self._refuse(key)
            elif not _are_equal(inputs, shape.inputs):  # a recording that ignores its inputs would agree too
                self._make(key, shape, inputs, compute, numbers, note)
        elif shape.came >= AFTER and not shape.is_unfit:
            shape.inputs = copied(inputs)
        return RunResult(numbers, note, is_replay=False)

    def discard(self, key: Hashable) -> None:
        """Use a recording no more whose own checks failed where those of the plain computation pass."""
        self._refuse(key)

    def drop(self) -> None:
        """Delete all recordings, give their memory back to the device, and record no more."""
        self._may_record = False
        self._trusted.clear()
        self._shapes.clear()
        pool, self._pool = self._pool, None
        if pool is not None:
            with _one_at_a_time:
                pool.release()

    def _shape(self, key: Hashable) -> _Shape:
        """Return what is known of a shape."""
        if key not in self._shapes and len(self._shapes) >= MOST_SHAPES:
            self._shapes.clear()
        return self._shapes.setdefault(key, _Shape())

    def _state(self) -> tuple[object, ...]:
        """Return what a computation changes that writes to the weights, or that draws random numbers on the device."""
        if self._pool is None:
            self._pool = self._make_pool(self._device)
        versions = (x._version for x in self._weights if not x.is_inference())
        return (*versions, *self._pool.random_state().tolist())

    def _refuse(self, key: Hashable) -> None:
        """Record this no more, and delete its recording, if there is one."""
        shape = self._shape(key)
        shape.is_unfit, shape.inputs = True, None
        self._trusted.pop(key, None)

    def _make(
        self,
        key: Hashable,
        shape: _Shape,
        inputs: Mapping[str, Tensor],
        compute: ComputeWithNote,
        numbers: Sequence[Tensor],
        note: Any,
    ) -> None:
        """Record a computation with the batch before this one, and compare it with what was found for this one.

        If that fails, nothing is recorded any more: the model may read its own numbers on the host.
        """

        def noted(given: Mapping[str, Tensor]) -> Sequence[Tensor]:
            with shape.passes.during():
                return compute(given)[0]

        assert shape.inputs is not None
        try:
            if not self._trusted:  # torch takes no memory from a pool whose graphs are all deleted
                self._pool, self._bytes = self._make_pool(self._device), 0
            with _one_at_a_time:
                recording = self._record(noted, shape.inputs, self._pool)
            self._bytes += recording.bytes
            self._may_record = self._bytes <= self._pool.most_bytes
            # Attention that saw other masks may give the same numbers for a while.
            is_right = (
                self._may_record
                and shape.passes.matched_history
                and all(_are_the_same(*pair) for pair in zip(numbers, recording.replay(inputs), strict=True))
            )
        except Exception:  # out of memory, say: what was found stands
            is_right = self._may_record = False
            self._trusted.clear()
        if is_right:
            self._trusted[key] = _Trusted(recording, note)
            shape.inputs = None
            return
        self._refuse(key)
        recording = None  # type: ignore[assignment] # its memory is released below
        if not self._may_record and not self._trusted:
            self.drop()


_one_at_a_time = threading.Lock()
"""Several threads may each have a recorder. Torch captures one graph at a time, and releases no memory meanwhile."""


@contextlib.contextmanager
def recorder_of(model: nn.Module) -> Iterator[Recorder | None]:
    """Yield what records a model until the end of the block; None where the model cannot be recorded."""
    recorder = new_recorder(model)
    if recorder is None or is_observed(list(model.modules())):
        yield None
        return
    try:
        yield recorder
    finally:
        recorder.drop()


def new_recorder(model: nn.Module) -> Recorder | None:
    """Return a recorder for a model, if it lies on a GPU where that is possible. It is to be dropped in the end."""
    device = recordable_device(model)
    return None if device is None else Recorder(device, [*model.parameters(), *model.buffers()])


def hashable(values: Any) -> Hashable | None:
    """Return plain values as a part of a cache key; None where there are others, such as functions."""
    if isinstance(values, (tuple, list)):
        parts = [hashable(one) for one in values]
        return None if any(one is None for one in parts) else (type(values), *parts)
    return (type(values), values) if isinstance(values, (int, str, float, bool, type(None))) else None


def _are_equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor] | None) -> bool:
    return b is not None and all(torch.equal(a[name], x) for name, x in b.items())


def _are_the_same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)
