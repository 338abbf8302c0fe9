"""The same computation on batches of one shape, again and again: recorded as a CUDA graph, replayed without Python.

A short batch keeps a GPU busy for less time than Python takes to launch its kernels. A graph launches them all at once.
A recording is made of a shape that came several times, and trusted after it gave the same numbers as the plain
computation on a batch that it was not made of.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from .operations.remembered import Remembered

Compute: TypeAlias = Callable[[Mapping[str, Tensor]], Sequence[Tensor]]

AFTER = 2
"""How often a shape must have come before it is recorded: that costs as much as several batches."""

MOST_SHAPES = 1024
"""How many shapes are counted, before counting starts anew."""

MOST = 32
"""How many shapes are recorded: each holds memory for as long as its recorder lives."""

CLOSE = {torch.float32: 2e-2, torch.float64: 1e-6}
"""How far a replay may be from the plain computation, as a share of the largest number: scores are in float32 also
where the model is in bfloat16, and other kernels may be chosen."""


class Recording(Protocol):
    """A computation that can be run again on other numbers of the same shape."""

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """Return what the computation makes of the inputs."""


class Graph:
    """A CUDA graph with its own copies of the inputs."""

    def __init__(self, compute: Compute, inputs: Mapping[str, Tensor], room: Room) -> None:
        self._inputs = _copied(inputs)
        self._room = room
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(room.stream.device):
            before = torch.cuda.current_stream()
            try:
                # Other threads may go on with their own work meanwhile; the backward pass runs in one.
                with torch.cuda.graph(
                    self._graph, pool=room.pool, stream=room.stream, capture_error_mode="thread_local"
                ):
                    self._outputs = compute(self._inputs)
            finally:
                torch.cuda.set_stream(before)  # where a failed capture leaves torch elsewhere

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        with self._room.turn(), torch.no_grad():
            for name, x in self._inputs.items():
                x.copy_(inputs[name], non_blocking=True)
            self._graph.replay()
            return [x.clone() for x in self._outputs]


class Room:
    """Where the graphs of one recorder are made and replayed: one after the other, so that they share their memory."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self._lock, self._last = threading.Lock(), torch.cuda.Event()  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until no other thread launches a replay here, and let the device wait for the last one to be over."""
        with self._lock:
            stream = torch.cuda.current_stream(self.stream.device)
            stream.wait_event(self._last)
            try:
                yield
            finally:
                self._last.record(stream)


class Recorder:
    """Batches on one device: those of a shape that comes often are replayed."""

    def __init__(
        self,
        device: torch.device,
        record: Callable[[Compute, Mapping[str, Tensor], Any], Recording] = Graph,
        room: Callable[[torch.device], Any] = Room,
    ) -> None:
        self._device, self._record, self._make_room = device, record, room
        self._came: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, tuple[Recording, Mapping[str, Tensor]]] = {}
        self._trusted: dict[Hashable, Recording] = {}
        self._seen: defaultdict[Hashable, Remembered] = defaultdict(Remembered)
        self.notes: dict[Hashable, Any] = {}
        """What whoever computes wants to keep for as long as there are recordings."""
        self.is_recording = False
        self._room: Any = None
        self._gave_up = False
        self._lock = threading.RLock()

    def run(self, what: Hashable, inputs: Mapping[str, Tensor], compute: Compute) -> tuple[Sequence[Tensor], bool]:
        """Return what `compute` makes of the inputs, and whether that is a replay; `what` tells computations apart."""
        key = (what, tuple((name, x.shape, x.dtype) for name, x in inputs.items()))
        trusted = self._trusted.get(key)
        if trusted is not None:
            return trusted.replay(inputs), True
        if self._gave_up:
            return compute(inputs), False

        def noted(given: Mapping[str, Tensor]) -> Sequence[Tensor]:
            with self._seen[key].during():
                return compute(given)

        found = noted(inputs)
        with self._lock:
            if len(self._came) == MOST_SHAPES:
                self._came.clear()
                self._seen.clear()
            self._came[key] += 1
            if key in self._waiting:
                self._compare(key, inputs, found)
            elif self._is_worth(key):
                self._make(key, noted, inputs)
        return found, False

    @property
    def holds_memory(self) -> bool:
        """Whether there are recordings."""
        return bool(self._trusted or self._waiting)

    def drop(self) -> None:
        """Forget all recordings, for the memory that they hold, and make no more."""
        with self._lock:
            self._trusted, self._waiting, self._room, self._gave_up = {}, {}, None, True
            self.notes.clear()
            self._came.clear()
            self._seen.clear()

    def _is_worth(self, key: Hashable) -> bool:
        """Return whether a recording is to be made."""
        many = len(self._trusted) + len(self._waiting) >= MOST
        return self._came[key] > AFTER and not (many or self._gave_up or key in self._trusted)

    def _make(self, key: Hashable, compute: Compute, inputs: Mapping[str, Tensor]) -> None:
        """Record a computation; if that fails, never try again: a model may wait for its own numbers.

        One at a time in a process: torch has no place for two.
        """
        try:
            with _one_at_a_time:
                self.is_recording = True
                self._room = self._room or self._make_room(self._device)
                self._waiting[key] = (self._record(compute, inputs, self._room), _copied(inputs))
        except Exception:
            self.drop()
        finally:
            self.is_recording = False

    def _compare(self, key: Hashable, inputs: Mapping[str, Tensor], found: Sequence[Tensor]) -> None:
        """Trust a recording that gives what was found on inputs other than its own; drop one that does not."""
        recording, own = self._waiting[key]
        try:
            if all(torch.equal(inputs[name], x) for name, x in own.items()):
                return  # one that knows nothing but these would agree too
            replayed = recording.replay(inputs)
            agrees = len(found) == len(replayed) and all(map(_are_close, found, replayed))
        except Exception:  # out of memory, say: what was found stands
            agrees = False
        if agrees:
            del self._waiting[key]
            self._trusted[key] = recording
        else:
            self.drop()


_one_at_a_time = threading.Lock()


def _copied(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in inputs.items()}


def _are_close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point() or not a.numel():
        return torch.equal(a, b)
    largest = float(a.abs().max())
    return bool((a - b).abs().max() <= CLOSE.get(a.dtype, 2e-2) * largest)
