"""A computation recorded as a CUDA graph: its kernels are launched together, on other inputs, without Python."""

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
"""The fraction of the device's memory that the recordings of one recorder may use."""


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
                # A capture that fails leaves the state of its generator in capture mode: so it captures with a copy.
                random.graphsafe_set_state(random.clone_state())
                # thread_local: other threads may use CUDA meanwhile, and the backward pass runs in another thread.
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
                torch.cuda.set_stream(stream)  # a capture that fails leaves its own stream as the current one,
                if not is_over:  # and the allocator directed to the graph's pool
                    with contextlib.suppress(RuntimeError):
                        torch._C._cuda_endAllocateToPool(device.index, pool.handle)

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """Return new tensors with the outputs for other inputs of the same shape."""
        with self._pool.ordered(), torch.no_grad():
            for name, x in self._inputs.items():
                x.copy_(inputs[name], non_blocking=True)
            self._graph.replay()
            return [x.clone() for x in self._outputs]


class Operands(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps alive the tensors that a computation reads but did not allocate, such as weights and cached tables.

    A graph reads their memory in every replay. If a library drops a table from its cache, the table would otherwise be
    freed and its memory reused.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[int, object] = {}
        """Address -> the storage there, or the tensor if it has no storage."""
        self._allocated: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in _tensors((args, kwargs)):
            address, memory = _memory(x)
            if address not in self._allocated:
                self.kept.setdefault(address, memory)
        out = function(*args, **(kwargs or {}))
        self._allocated.update(_memory(x)[0] for x in _tensors(out))
        return out


def _tensors(values: Any) -> Iterator[Tensor]:
    return (x for x in tree_leaves(values) if isinstance(x, Tensor))


def _memory(x: Tensor) -> tuple[int, object]:
    """Return the address of a tensor's memory, and an object that keeps it alive."""
    try:
        storage = x.untyped_storage()
        return storage.data_ptr() or id(x), storage
    except RuntimeError:  # sparse tensors and wrapper subclasses have no storage
        return id(x), x.detach()


class GraphPool:
    """The memory pool and the stream of one recorder's graphs, which are replayed one at a time."""

    def __init__(self, device: torch.device) -> None:
        self.stream = _stream(device)
        self.handle = torch.cuda.graph_pool_handle()
        self.most_bytes = MOST_MEMORY * torch.cuda.get_device_properties(device).total_memory
        self._last = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def random_state(self) -> Tensor:
        """Return the state of the device's default random number generator."""
        return torch.cuda.get_rng_state(self.stream.device)

    @contextlib.contextmanager
    def ordered(self) -> Iterator[None]:
        """Order the replay inside the block after the last one, which may have been on another stream."""
        stream = torch.cuda.current_stream(self.stream.device)
        stream.wait_event(self._last)
        try:
            yield
        finally:
            self._last.record(stream)

    @staticmethod
    def release() -> None:
        """Free the memory of deleted graphs."""
        torch.cuda.empty_cache()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which all graphs are captured: cuBLAS allocates a workspace for every stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def copied(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return detached copies of tensors."""
    return {name: x.detach().clone() for name, x in inputs.items()}
