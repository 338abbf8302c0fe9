"""A computation as a CUDA graph: its kernels are launched all at once, on other numbers, without any Python."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Compute: TypeAlias = Callable[[Mapping[str, Tensor]], Sequence[Tensor]]

MOST_MEMORY = 1 / 16
"""The share of the device's memory that the recordings of one recorder may hold."""


class Graph:
    """A CUDA graph with its own copies of the inputs."""

    def __init__(self, compute: Compute, inputs: Mapping[str, Tensor], pool: GraphPool) -> None:
        self._inputs = copied(inputs)
        self._pool = pool
        self._graph = torch.cuda.CUDAGraph()
        self._operands = Operands()
        device = pool.stream.device
        with torch.cuda.device(device):
            stream, is_over = torch.cuda.current_stream(), False
            random = torch.cuda.default_generators[device.index]
            own = random.graphsafe_get_state()
            try:
                # A capture that fails leaves its generator in capture mode for good: it gets a copy of the state.
                random.graphsafe_set_state(random.clone_state())
                # Other threads may go on with their own work meanwhile; the backward pass runs in one.
                with torch.cuda.graph(
                    self._graph, pool=pool.handle, stream=pool.stream, capture_error_mode="thread_local"
                ):
                    random.graphsafe_set_state(own)
                    before = torch.cuda.memory_reserved()
                    with self._operands:
                        self._outputs = compute(self._inputs)
                    self.bytes = torch.cuda.memory_reserved() - before
                is_over = True
            finally:
                random.graphsafe_set_state(own)
                torch.cuda.set_stream(stream)  # a capture that fails leaves its own stream current,
                if not is_over:  # and the allocator in the graph's pool
                    with contextlib.suppress(RuntimeError):
                        torch._C._cuda_endAllocateToPool(device.index, pool.handle)

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """Return what the computation makes of other inputs of the same shape, in tensors of their own."""
        with self._pool.ordered(), torch.no_grad():
            for name, x in self._inputs.items():
                x.copy_(inputs[name], non_blocking=True)
            self._graph.replay()
            return [x.clone() for x in self._outputs]


class Operands(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps alive the tensors that a computation reads but did not make, such as weights and cached tables.

    A graph reads their memory in every replay. A table that a library drops from its cache would otherwise be freed,
    and its memory used for something else.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[int, object] = {}
        """Address -> the storage there, or the tensor where it has none of its own."""
        self._made: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in _tensors((args, kwargs)):
            address, memory = _memory(x)
            if address not in self._made:
                self.kept.setdefault(address, memory)
        found = function(*args, **(kwargs or {}))
        self._made.update(_memory(x)[0] for x in _tensors(found))
        return found


def _tensors(values: Any) -> Iterator[Tensor]:
    return (x for x in tree_leaves(values) if isinstance(x, Tensor))


def _memory(x: Tensor) -> tuple[int, object]:
    """Return where a tensor lies, and what keeps that memory alive."""
    try:
        storage = x.untyped_storage()
        return storage.data_ptr() or id(x), storage
    except RuntimeError:  # sparse tensors and wrapper subclasses hold other tensors
        return id(x), x.detach()


class GraphPool:
    """The memory and the stream that the graphs of one recorder share: they are replayed one after the other."""

    def __init__(self, device: torch.device) -> None:
        self.stream = _stream(device)
        self.handle = torch.cuda.graph_pool_handle()
        self.most_bytes = MOST_MEMORY * torch.cuda.get_device_properties(device).total_memory
        self._last = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def random_state(self) -> Tensor:
        """Return the state of the device's random numbers, which a computation that draws some changes."""
        return torch.cuda.get_rng_state(self.stream.device)

    @contextlib.contextmanager
    def ordered(self) -> Iterator[None]:
        """Let the device finish the last replay before the next begins, also where that is on another stream."""
        stream = torch.cuda.current_stream(self.stream.device)
        stream.wait_event(self._last)
        try:
            yield
        finally:
            self._last.record(stream)

    @staticmethod
    def release() -> None:
        """Give the memory of graphs that were deleted back to the device."""
        torch.cuda.empty_cache()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which graphs are captured, one for all: cuBLAS keeps a workspace for every stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def copied(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of inputs, without their autograd history."""
    return {name: x.detach().clone() for name, x in inputs.items()}
