"""A computation as a CUDA graph: its kernels are launched all at once, on other numbers, without any Python."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Compute: TypeAlias = Callable[[Mapping[str, Tensor]], Sequence[Tensor]]

MOST_MEMORY = 1 / 16
"""The share of the device's memory that recordings of one model may hold."""


class Graph:
    """A CUDA graph with its own copies of the inputs."""

    def __init__(self, compute: Compute, inputs: Mapping[str, Tensor], room: Room) -> None:
        self._inputs = copied(inputs)
        self._room = room
        self._graph = torch.cuda.CUDAGraph()
        device = room.stream.device
        with torch.cuda.device(device):
            stream, is_over = torch.cuda.current_stream(), False
            random = torch.cuda.default_generators[device.index]
            own = random.graphsafe_get_state()
            try:
                # A recording that fails would leave the device's random numbers as if it went on: it gets a copy.
                random.graphsafe_set_state(random.clone_state())
                # Other threads may go on with their own work meanwhile; the backward pass runs in one.
                with torch.cuda.graph(
                    self._graph, pool=room.pool, stream=room.stream, capture_error_mode="thread_local"
                ):
                    random.graphsafe_set_state(own)
                    before = torch.cuda.memory_reserved()
                    self._outputs = compute(self._inputs)
                    self.bytes = torch.cuda.memory_reserved() - before
                is_over = True
            finally:
                random.graphsafe_set_state(own)
                torch.cuda.set_stream(stream)  # where a failed capture leaves torch elsewhere
                if not is_over:  # and memory to be taken for it
                    with contextlib.suppress(RuntimeError):
                        torch._C._cuda_endAllocateToPool(device.index, room.pool)

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        with self._room.turn(), torch.no_grad():
            for name, x in self._inputs.items():
                x.copy_(inputs[name], non_blocking=True)
            self._graph.replay()
            return [x.clone() for x in self._outputs]


class Room:
    """Where the graphs of one recorder are made and replayed: one after the other, so that they share their memory."""

    def __init__(self, device: torch.device) -> None:
        self.stream = _stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.most_bytes = MOST_MEMORY * torch.cuda.get_device_properties(device).total_memory
        self._lock, self._last = threading.Lock(), torch.cuda.Event()  # type: ignore[no-untyped-call]

    def behind(self) -> float:
        """Wait until the device has done what was launched, and return how many seconds that took."""
        start = time.perf_counter()
        torch.cuda.current_stream(self.stream.device).synchronize()
        return time.perf_counter() - start

    def seconds(self, run: Callable[[], object]) -> float:
        """Return how long something takes, until the device is done."""
        start = time.perf_counter()
        run()
        self.behind()
        return time.perf_counter() - start

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


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return where graphs are made, one at a time: a library keeps memory for every stream that it ever ran on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def copied(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of inputs, without what they were made of."""
    return {name: x.detach().clone() for name, x in inputs.items()}
