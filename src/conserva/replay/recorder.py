"""Recording of a computation on batches of the same shape as a CUDA graph, which is replayed without Python.

For small batches Python takes longer to launch the kernels than a GPU to run them. A graph launches them all at once. A
recorder lives for one call of the library, or for a user's `conserva.replaying` block, in which the model's structure
and the functions that it calls stay the same. A shape that occurs several times is recorded; the recording is used if
its results are bitwise equal to those of the plain computation on a batch that it was not recorded with.
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
"""A computation: inputs -> tensors on the device, and a note, any object that is equal for all inputs of one shape."""

AFTER = 2
"""The number of batches of a shape computed before one is recorded: a recording costs as much as two or three."""

MOST_SHAPES = 256
"""The number of shapes whose batches are counted; beyond it the counts are reset."""

MOST = 32
"""The largest number of recordings: each uses memory for as long as its recorder lives."""


class Recording(Protocol):
    """A recorded computation that can be run on other inputs of the same shape."""

    bytes: int
    """The memory that it uses on the device."""

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """Return the outputs for these inputs."""


class RunResult(NamedTuple):
    """The outputs for a batch, its note, and whether they were replayed."""

    numbers: Sequence[Tensor]
    note: Any
    is_replay: bool


class _Trusted(NamedTuple):
    """A recording that was verified against the plain computation, and its note."""

    recording: Recording
    note: Any


@dataclass
class _Shape:
    """The state of batches of one shape."""

    count: int = 0
    is_refused: bool = False
    inputs: Mapping[str, Tensor] | None = None
    """A copy of the last batch, to record with; None before there were enough batches, or if the shape is refused."""
    masks: MaskHistory = field(default_factory=MaskHistory)


class Recorder:
    """Records and replays a computation for frequent batch shapes. Not thread-safe."""

    def __init__(
        self,
        device: torch.device,
        weights: Sequence[Tensor] = (),
        record: Callable[[Compute, Mapping[str, Tensor], Any], Recording] = Graph,
        pool: Callable[[torch.device], Any] = GraphPool,
    ) -> None:
        """Create a recorder.

        Parameters
        ----------
        device
            The GPU.
        weights
            The model's tensors. A computation that writes to them, or draws random numbers, is not recorded.
        record
            Creates a recording of a computation, given its inputs and the pool.
        pool
            Creates the pool that the recordings share.
        """
        self._device, self._weights = device, weights
        self._record, self._make_pool = record, pool
        self._shapes: dict[Hashable, _Shape] = {}
        self._trusted: dict[Hashable, _Trusted] = {}
        self._pool: Any = None
        self._bytes = 0
        self._may_record = True

    @staticmethod
    def key(what: Hashable, inputs: Mapping[str, Tensor]) -> Hashable:
        """Return the cache key of a computation; `what` distinguishes computations on inputs of the same shape."""
        # Strides belong to it, because they may change the choice of kernels.
        layouts = tuple((name, x.shape, x.dtype, x.is_contiguous() or x.stride()) for name, x in inputs.items())
        return (what, layouts)

    @property
    def holds_memory(self) -> bool:
        """Whether recordings use memory on the device."""
        return bool(self._trusted)

    def run(self, key: Hashable, inputs: Mapping[str, Tensor], compute: ComputeWithNote) -> RunResult:
        """Return the result of `compute(inputs)`, by a replay if there is a recording for this key."""
        if any(x.device != self._device for x in inputs.values()):
            return RunResult(*compute(inputs), is_replay=False)  # Python may read values of inputs on the host
        trusted = self._trusted.get(key)
        if trusted is not None:
            return RunResult(trusted.recording.replay(inputs), trusted.note, is_replay=True)
        if not self._may_record:
            return RunResult(*compute(inputs), is_replay=False)
        shape = self._shape(key)
        is_due = shape.inputs is not None and len(self._trusted) < MOST
        before = self._state() if is_due else None
        with shape.masks.during():
            numbers, note = compute(inputs)
        shape.count += 1
        if is_due:
            if self._state() != before:
                self._refuse(key)
            elif not _are_equal(
                inputs, shape.inputs
            ):  # on equal inputs, a recording that ignores its inputs would agree too
                self._make(key, shape, inputs, compute, numbers, note)
        elif shape.count >= AFTER and not shape.is_refused:
            shape.inputs = copied(inputs)
        return RunResult(numbers, note, is_replay=False)

    def discard(self, key: Hashable) -> None:
        """Delete a recording, and do not record its key again: its checks failed where the plain computation's pass."""
        self._refuse(key)

    def drop(self) -> None:
        """Delete all recordings, free their memory, and record no more."""
        self._may_record = False
        self._trusted.clear()
        self._shapes.clear()
        pool, self._pool = self._pool, None
        if pool is not None:
            with _one_at_a_time:
                pool.release()

    def _shape(self, key: Hashable) -> _Shape:
        """Return the state of a shape."""
        if key not in self._shapes and len(self._shapes) >= MOST_SHAPES:
            self._shapes.clear()
        return self._shapes.setdefault(key, _Shape())

    def _state(self) -> tuple[object, ...]:
        """Return the weights' version counters and the random state, which show writes to weights and random draws."""
        if self._pool is None:
            self._pool = self._make_pool(self._device)
        versions = (x._version for x in self._weights if not x.is_inference())
        return (*versions, *self._pool.random_state().tolist())

    def _refuse(self, key: Hashable) -> None:
        """Do not record this key again, and delete its recording, if there is one."""
        shape = self._shape(key)
        shape.is_refused, shape.inputs = True, None
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
        """Record a computation with the previous batch, and compare its replay of this batch with the plain results.

        If recording fails, the recorder records no more: the model may read values on the host.
        """

        def without_note(given: Mapping[str, Tensor]) -> Sequence[Tensor]:
            with shape.masks.during():
                return compute(given)[0]

        assert shape.inputs is not None
        try:
            if not self._trusted:  # a pool whose graphs are all deleted cannot be used again
                self._pool, self._bytes = self._make_pool(self._device), 0
            with _one_at_a_time:
                recording = self._record(without_note, shape.inputs, self._pool)
            self._bytes += recording.bytes
            self._may_record = self._bytes <= self._pool.most_bytes
            # Results may be equal by chance although attention used other masks.
            is_verified = (
                self._may_record
                and shape.masks.matched_history
                and all(_is_same(*pair) for pair in zip(numbers, recording.replay(inputs), strict=True))
            )
        except Exception:  # for example out of memory; the plain results are valid
            is_verified = self._may_record = False
            self._trusted.clear()
        if is_verified:
            self._trusted[key] = _Trusted(recording, note)
            shape.inputs = None
            return
        self._refuse(key)
        recording = None  # type: ignore[assignment] # so that `drop` can free its memory
        if not self._may_record and not self._trusted:
            self.drop()


_one_at_a_time = threading.Lock()
"""Held while a graph is captured or memory is freed: torch allows one capture at a time, and no freeing meanwhile."""


@contextlib.contextmanager
def recorder_of(model: nn.Module) -> Iterator[Recorder | None]:
    """Yield a recorder for a model until the end of the block; None if the model cannot be recorded."""
    recorder = new_recorder(model)
    if recorder is None or is_observed(list(model.modules())):
        yield None
        return
    try:
        yield recorder
    finally:
        recorder.drop()


def new_recorder(model: nn.Module) -> Recorder | None:
    """Return a recorder for a model; None if the model cannot be recorded. The caller must `drop` it at the end."""
    device = recordable_device(model)
    return None if device is None else Recorder(device, [*model.parameters(), *model.buffers()])


def hashable(values: Any) -> Hashable | None:
    """Return plain values as part of a cache key; None if there are others, such as functions."""
    if isinstance(values, (tuple, list)):
        parts = [hashable(value) for value in values]
        return None if any(part is None for part in parts) else (type(values), *parts)
    return (type(values), values) if isinstance(values, (int, str, float, bool, type(None))) else None


def _are_equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor] | None) -> bool:
    return b is not None and all(torch.equal(a[name], x) for name, x in b.items())


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)
