"""The same computation on batches of one shape, again and again: recorded as a CUDA graph, replayed without Python.

A short batch keeps a GPU busy for less time than Python takes to launch its kernels. A graph launches them all at once.
A recording is made of a shape that came several times and left the device waiting, and trusted after it gave the same
numbers as the plain computation on a batch that it was not made of: bit for bit, unless the user is content with less.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from .cuda_graph import Compute, Graph, Room, copied
from .operations.remembered import Remembered
from .reads import Reads
from .weighing import Weighing

Vary: TypeAlias = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]

AFTER = 2
"""How often a shape must have come before it is recorded: that costs as much as several batches."""

MOST_SHAPES = 1024
"""How many shapes are counted, before counting starts anew."""

MOST = 32
"""How many shapes are recorded: each holds memory for as long as its recorder lives."""

WORTH = 0.9
"""The share of the plain computation's time that a replay may take: it holds memory, and has to pay."""

TRIES = 3
"""How often a replay may show how long it takes: something else may be in the way, once."""

BEHIND = 0.5
"""How long the device may still work when Python is done, as a share of Python's time: beyond, Python is no hindrance,
and there is nothing to gain."""

VARIED = ("inputs_embeds", "input_values", "input_features", "patches", "pixel_values")
"""How numbers are called that no model takes for an index."""

IDLE = ("IPython.", "debugpy.", "ipykernel.", "pydevd", "_pydevd", "rich.", "tornado.", "tqdm.", "zmq.")
"""Whose threads leave devices alone: those of notebooks, debuggers and progress bars."""


class Recording(Protocol):
    """A computation that can be run again on other numbers of the same shape."""

    bytes: int
    """The memory that it holds on the device."""

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """Return what the computation makes of the inputs."""


class Begun(NamedTuple):
    """A replay that nobody asked for yet, and what was replayed."""

    recording: Recording
    found: Sequence[Tensor]


@dataclass
class _Shape:
    """What is known of batches of one shape."""

    came: int = 0
    is_unfit: bool = False
    never_pays: bool = False
    """Whether it is unfit for its time or its memory, which are the same whatever a model's settings are."""
    passes: Remembered = field(default_factory=Remembered)
    bytes: int | None = None
    """What a pass keeps on the device; None before one was weighed."""
    seconds: float = math.inf
    """How long a plain pass takes, until the device is done."""


class Recorder:
    """Batches on one device: those of a shape that comes often are replayed."""

    def __init__(
        self,
        device: torch.device,
        record: Callable[[Compute, Mapping[str, Tensor], Any], Recording] = Graph,
        room: Callable[[torch.device], Any] = Room,
        rounding: float = 0.0,
        vary: Vary | None = None,
    ) -> None:
        """Record on a device, by graphs.

        Whoever is not cautious is content with numbers that are the same up to `rounding`. Where the same inputs come
        again and again, `vary` makes others of them, to see whether a recording follows those.
        """
        self._device, self._record, self._make_room = device, record, room
        self._rounding, self._vary = rounding, vary
        self._shapes: dict[Hashable, _Shape] = {}
        self._waiting: dict[Hashable, tuple[Recording, Mapping[str, Tensor]]] = {}
        self._trusted: dict[Hashable, Recording] = {}
        self._reads: dict[Hashable, Reads] = {}
        """What each recording reads, and goes with."""
        self.notes: dict[Hashable, Any] = {}
        """What whoever computes wants to keep for as long as there are recordings."""
        self.vain: set[Hashable] = set()
        """For what it need not be asked, says whoever computes: no recording of it pays."""
        self.is_recording = False
        self._room: Any = None
        self._held = 0
        self._gave_up = False
        self._lock = threading.RLock()

    def begin(self, what: Hashable, inputs: Mapping[str, Tensor], *, cautious: bool = True) -> Begun | None:
        """Replay what is trusted for this before it is known whether it is the right one: `run` takes it, or nobody.

        A replay changes nothing but its own memory; what it reads is there, even where the model is another by now.
        """
        key = self.key(what, inputs, cautious)
        trusted = None if self._lie_elsewhere(inputs) else self._trusted_for(key)
        return None if trusted is None else Begun(trusted, trusted.replay(inputs))

    def run(
        self,
        what: Hashable,
        inputs: Mapping[str, Tensor],
        compute: Compute,
        *,
        cautious: bool = True,
        begun: Begun | None = None,
    ) -> tuple[Sequence[Tensor], bool]:
        """Return what `compute` makes of the inputs, and whether that is a replay; `what` tells computations apart.

        A cautious recording is made while no other thread is at work, and is the plain computation to the bit. What
        was begun with these inputs counts if it is a replay of what is asked for.
        """
        if self._lie_elsewhere(inputs):
            return compute(inputs), False  # what lies on the host may be read there, by Python
        key = self.key(what, inputs, cautious)
        if begun is not None and begun.recording is self._trusted.get(key):
            return begun.found, True
        trusted = self._trusted_for(key)
        if trusted is not None:
            return trusted.replay(inputs), True
        if self._gave_up:
            return compute(inputs), False

        shape = self._shape(key)

        def noted(given: Mapping[str, Tensor]) -> Sequence[Tensor]:
            with shape.passes.during():
                return compute(given)

        # Once, and not the first, which makes things that stay.
        weighing = Weighing(self._device) if shape.came and shape.bytes is None else None
        start = time.perf_counter()
        with weighing or contextlib.nullcontext():
            found = noted(inputs)
        took = time.perf_counter() - start
        with self._lock:
            shape.came += 1
            if weighing is not None:
                shape.bytes = weighing.bytes
            waiting = self._waiting.get(key)
            if waiting is not None:
                self._compare(key, shape, *waiting, noted, inputs, found, took, 0.0 if cautious else self._rounding)
            elif self._is_worth(key, shape) and not (cautious and others_at_work()):
                self._make(key, shape, noted, inputs, took, cautious)
        return found, False

    @staticmethod
    def key(what: Hashable, inputs: Mapping[str, Tensor], cautious: bool) -> Hashable:
        """Return what a recording is looked up by, and its notes."""
        # Other kernels may read numbers that lie in another order.
        forms = tuple((name, x.shape, x.dtype, x.is_contiguous() or x.stride()) for name, x in inputs.items())
        return (what, cautious, forms)

    def never_pays(self, key: Hashable) -> bool:
        """Return whether recordings of a shape are known to take too long, or too much memory."""
        return self._shape(key).never_pays

    @property
    def gave_up(self) -> bool:
        """Whether nothing is recorded any more."""
        return self._gave_up

    @property
    def holds_memory(self) -> bool:
        """Whether there are recordings."""
        return bool(self._trusted or self._waiting)

    def distrust(self, key: Hashable) -> None:
        """Forget a recording whose own checks failed where the plain computation's do not."""
        with self._lock:
            self._refuse(key, self._shape(key))

    def drop(self) -> None:
        """Forget all recordings, for the memory that they hold, and make no more."""
        with self._lock:
            self._trusted, self._waiting, self._reads, self._room, self._gave_up = {}, {}, {}, None, True
            self.notes.clear()
            self._shapes.clear()

    def _trusted_for(self, key: Hashable) -> Recording | None:
        """Return the recording that is trusted, if all that it reads is still there."""
        trusted, reads = self._trusted.get(key), self._reads.get(key)
        if trusted is None or reads is None or reads.are_in_place():
            return trusted
        self._refuse(key, self._shape(key))
        return None

    def _lie_elsewhere(self, inputs: Mapping[str, Tensor]) -> bool:
        return any(x.device != self._device for x in inputs.values())

    def _shape(self, key: Hashable) -> _Shape:
        """Return what is known of a shape."""
        with self._lock:
            if key not in self._shapes and len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
                self.vain.clear()
            return self._shapes.setdefault(key, _Shape())

    def _is_worth(self, key: Hashable, shape: _Shape) -> bool:
        """Return whether to think about a recording."""
        if shape.came <= AFTER or shape.is_unfit or self._gave_up or key in self._trusted:
            return False
        return len(self._trusted) + len(self._waiting) < MOST

    def _refuse(self, key: Hashable, shape: _Shape) -> None:
        """Record this no more, and let go of a recording, if there is one. Torch keeps the memory for the others.

        Another thread may be about to trust it: what waits goes first.
        """
        shape.is_unfit = True
        for held in (self._waiting, self._trusted, self._reads, self.notes):
            held.pop(key, None)

    def _make(
        self,
        key: Hashable,
        shape: _Shape,
        compute: Compute,
        inputs: Mapping[str, Tensor],
        took: float,
        cautious: bool,
    ) -> None:
        """Record a computation that took Python so long, if that is what the device waits for, and there is room.

        If it fails, never try again: a model may wait for its own numbers. One at a time in a process: torch has no
        place for two.
        """
        try:
            if self._room is None or not self.holds_memory:  # torch fills no place anew that was left
                self._room, self._held = self._make_room(self._device), 0
            behind = self._room.behind()
            shape.seconds = took + behind
            # Recordings share memory: a new one takes what it needs beyond that of the others.
            needed = max(shape.bytes or 0, self._held)
            if behind > BEHIND * took or needed > self._room.most_bytes:
                shape.never_pays = True
                self._refuse(key, shape)
                return
            reads = Reads(self._device)
            with _one_at_a_time:
                self.is_recording = True
                recording = self._record(reads.followed(compute), inputs, self._room)
            self._held += recording.bytes
            # Other kernels may give the same numbers for a while.
            is_another = cautious and not shape.passes.recorded_as_before
            if is_another or self._held > self._room.most_bytes:
                self._refuse(key, shape)
                return
            self._waiting[key], self._reads[key] = (recording, copied(inputs)), reads
            if not reads.watch(_refusal(self, key, shape)):
                self._refuse(key, shape)
        except Exception:
            self.drop()
        finally:
            self.is_recording = False

    def _compare(
        self,
        key: Hashable,
        shape: _Shape,
        recording: Recording,
        own: Mapping[str, Tensor],
        compute: Compute,
        inputs: Mapping[str, Tensor],
        found: Sequence[Tensor],
        took: float,
        rounding: float,
    ) -> None:
        """Trust a recording that gives what was found on inputs other than its own, and sooner; drop one that does not.

        Python took so long to launch what was found.
        """
        try:
            limit = WORTH * min(shape.seconds, took + self._room.behind())
            if _are_equal(inputs, own):  # one that knows nothing but these would agree too
                inputs = inputs if self._vary is None else self._vary(inputs)
                if _are_equal(inputs, own):
                    return
                found = compute(inputs)
            pairs = zip(found, recording.replay(inputs), strict=True)
            is_right = all(_are_the_same(one, other, rounding) for one, other in pairs)
            shape.never_pays = is_right and all(
                self._room.seconds(lambda: recording.replay(inputs)) > limit for _ in range(TRIES)
            )
        except Exception:  # out of memory, say: what was found stands
            self.drop()
            return
        if not is_right or shape.never_pays:  # other kernels were chosen, say, or it does not follow its inputs
            self._refuse(key, shape)
            return
        self._trusted[key] = recording
        if self._waiting.pop(key, None) is None:  # what it reads was let go of just now
            self._trusted.pop(key, None)


_one_at_a_time = threading.Lock()


def _refusal(recorder: Recorder, key: Hashable, shape: _Shape) -> Callable[[], None]:
    """Return what refuses a recording, if its recorder is still there: one that held that would keep it alive."""
    known = weakref.ref(recorder)

    def refuse() -> None:
        there = known()
        if there is not None:
            there._refuse(key, shape)

    return refuse


def others_at_work() -> bool:
    """Return whether another thread may be using the device.

    While one records, torch lets no other draw random numbers there, or wait for the whole device: it would fail.
    """
    own = threading.current_thread()
    return any(one is not own and not _is_idle(one) for one in threading.enumerate())


def _is_idle(thread: threading.Thread) -> bool:
    """Return whether a thread is known to leave devices alone; the engine's own, where Python ran, has no name."""
    made_by = (type(thread).__module__, getattr(getattr(thread, "_target", None), "__module__", None) or "")
    return isinstance(thread, threading._DummyThread) or any(one.startswith(IDLE) for one in made_by)


def known(values: Any) -> Hashable | None:
    """Return plain values as something to look up by; None where there are others."""
    if isinstance(values, (tuple, list)):
        parts = [known(one) for one in values]
        return None if any(one is None for one in parts) else (type(values), *parts)
    return (type(values), values) if isinstance(values, (int, str, float, bool, type(None))) else None


def varied(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs of a Hugging Face model with the same tokens, or numbers of an image, at other places."""
    return {name: x.roll(1, -1) if _may_roll(name, x) else x for name, x in inputs.items()}


def _may_roll(name: str, x: Tensor) -> bool:
    """Return whether numbers may change places: not where each has a vocabulary of its own."""
    tokens = name.endswith("input_ids") and x.dim() == 2
    return tokens or (x.is_floating_point() and x.dim() > 0 and name in VARIED)


def _are_equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(a[name], x) for name, x in b.items())


def _are_the_same(a: Tensor, b: Tensor, rounding: float) -> bool:
    """Return whether numbers are equal, or as close as rounding leaves them, as a share of the largest."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not rounding or not a.is_floating_point() or not a.numel():
        return torch.equal(a, b)
    return bool((a - b).abs().max() <= rounding * a.abs().max())
