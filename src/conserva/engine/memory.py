"""Memory plans for saved tensors: keep them on the device, recompute them in the backward pass, or offload them."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import CheckpointError

from ..errors import Error, OutOfMemory

LARGE = 2**26
"""The number of elements from which a fused function pays off: below it, torch's own graph has less Python overhead."""

LEFT_TO_HOST = 2**32
"""Bytes of host memory that stay free: a system that runs out of memory kills the process without an error message."""

SMALL_BYTES = 2**20
"""Smaller tensors are kept on the device and not counted."""

OFFLOADED = ("cuda",)
"""The types of devices from which tensors are offloaded to the host."""

WHOLE, RECOMPUTE, OFFLOAD = "whole", "recompute", "offload"
AUTO = "auto"
_LEANER = (WHOLE, RECOMPUTE, OFFLOAD)

_Result = TypeVar("_Result")


IN_PASSING = 4
"""The number of large temporary tensors of a gated MLP: gate, its activation, up, and their product."""


@dataclass(frozen=True)
class Plan:
    """Limits on saved tensors, as fractions of the memory that was free at the start.

    `whole` limits the activations that are not recomputed, `device` all saved tensors on the device. Below the second
    limit, room for temporary tensors of the model is left free.
    """

    name: str
    whole: float
    device: float


PLANS = {
    plan.name: plan for plan in (Plan(WHOLE, math.inf, math.inf), Plan(RECOMPUTE, 0, math.inf), Plan(OFFLOAD, 0, 0))
}
"""The plans that a user can choose by name."""

CHOICES = (AUTO, *PLANS)

_AUTO_ON_CUDA = (Plan(AUTO, 0.08, 0.85), Plan(RECOMPUTE, 0, 0.4), PLANS[OFFLOAD])
_AUTO_ON_HOST = (Plan(AUTO, 0.5, math.inf), PLANS[RECOMPUTE])


def plans(checkpoint: str, device: torch.device) -> tuple[Plan, ...]:
    """Return the plans to try, in this order."""
    if checkpoint not in CHOICES:
        raise Error(f"checkpoint={checkpoint!r} is not a memory plan: choose one of {', '.join(map(repr, CHOICES))}.")
    if checkpoint != AUTO:
        return (PLANS[checkpoint],)
    return _AUTO_ON_CUDA if device.type == "cuda" else _AUTO_ON_HOST


def within_memory(checkpoint: str, device: torch.device, run: Callable[[Plan | None], _Result]) -> _Result:
    """Return `run(plan)` for the first plan that fits into memory.

    A model may change a tensor in place that a plan has saved, or have checkpoints of its own, which fail if a plan
    saves other tensors when it recomputes. Torch detects both, and such a model is run without a plan.

    Parameters
    ----------
    checkpoint
        The name of a plan, or "auto" for several.
    device
        The device whose memory is limited.
    run
        The computation, called with a plan, or with None to run without one.
    """
    waiting: list[Plan | None] = list(plans(checkpoint, device))
    tried: list[str] = []
    while waiting:
        plan = waiting.pop(0)
        try:
            return run(plan)
        except (RuntimeError, MemoryError) as error:
            if out_of_memory(error):
                tried.append("none" if plan is None else plan.name)
            elif "inplace operation" in str(error) and plan is None:
                raise Error(
                    "The model changes a tensor in place that its own gradient needs, so torch cannot differentiate "
                    f"it: {str(error).split(' Hint:')[0]} Use the out-of-place version of that call."
                ) from None
            elif plan is None or not (isinstance(error, CheckpointError) or "inplace operation" in str(error)):
                raise
            else:
                waiting = [None]
        # Outside the except block the traceback is freed, and with it the tensors of the failed attempt.
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    leaner = "" if checkpoint in (AUTO, OFFLOAD) else f", or pass checkpoint={AUTO!r}"
    raise OutOfMemory(
        f"checkpoint={checkpoint!r}: the explanation does not fit into the memory of {device} (plans tried: "
        f"{', '.join(tried)}). Explain fewer or shorter inputs at a time{leaner}."
    )


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that a device or the host is out of memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError, OutOfMemory)):
        return True
    return isinstance(error, RuntimeError) and ("out of memory" in str(error) or "can't allocate memory" in str(error))


class Tally:
    """Counts the bytes of storages, each once, for as long as it exists."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._bytes = 0

    def has(self, x: Tensor) -> bool:
        """Return whether the storage of `x` is counted."""
        return _key(x) in self._storages

    def count(self, x: Tensor) -> None:
        """Count the storage of `x`."""
        if not self.has(x):
            self._storages[_key(x)] = (_weak_reference(x), x.untyped_storage().nbytes())
            self._bytes += x.untyped_storage().nbytes()

    def has_room(self, x: Tensor, limit: float) -> bool:
        """Return whether the storage of `x` can be added without exceeding a limit."""
        more = x.untyped_storage().nbytes()
        if more <= limit < self._bytes + more:
            # Storages may have been freed since they were counted.
            self._storages = {key: kept for key, kept in self._storages.items() if not _is_freed(kept[0])}
            self._bytes = sum(size for _, size in self._storages.values())
        return self._bytes + more <= limit


class Keeper:
    """Decides how the tensors that one pass saves for its gradient are kept, by a memory plan."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan = plan
        self.device = device
        self.leanest = WHOLE
        self._free: float | None = None
        self._largest = 0
        self._whole, self._kept = Tally(), Tally()
        self._copies: dict[tuple[object, ...], tuple[StorageWeakRef, Tensor]] = {}

    def is_large(self, x: Tensor) -> bool:
        """Return whether `x` is large enough to be kept by the plan."""
        large = x.numel() >= LARGE
        if large and x.nbytes > self._largest:
            self._largest = x.nbytes
        return large

    def keeps_whole(self, x: Tensor) -> bool:
        """Return whether there is room to save an activation rather than recompute it; if so, it is counted."""
        if x.nbytes < SMALL_BYTES or self._whole.has(x):
            return True
        if not self._whole.has_room(x, self._limit(self.plan.whole)):
            return False
        self._whole.count(x)
        self._kept.count(x)
        return True

    def recomputes(self) -> None:
        """Record that an activation will be recomputed."""
        self._record(RECOMPUTE)

    def pack(self, x: Tensor) -> Tensor:
        """Return the tensor to save for the backward pass: `x` itself, or a copy on the host."""
        x = x.detach()  # without the attributes that rules have set on `x`, which would keep other tensors alive
        if x.nbytes < SMALL_BYTES or x.device.type not in OFFLOADED or self._kept.has(x):
            return x
        key = (_key(x), x.storage_offset(), x.shape, x.stride(), x.dtype, x._version)
        cached = self._copies.get(key)
        if cached is not None:
            return cached[1]
        if self._kept.has_room(x, self._limit(self.plan.device) - IN_PASSING * self._largest):
            self._kept.count(x)
            return x
        self._record(OFFLOAD)
        self._copies = {key_: copy for key_, copy in self._copies.items() if not _is_freed(copy[0])}
        copy = _on_host(x)
        self._copies[key] = (_weak_reference(x), copy)
        return copy

    @staticmethod
    def unpack(x: Tensor, device: torch.device) -> Tensor:
        """Return the tensor that `pack` was given, on its device."""
        return x if x.device == device else x.to(device, non_blocking=True)

    def _record(self, plan: str) -> None:
        self.leanest = leanest((self.leanest, plan))

    def _limit(self, share: float) -> float:
        """Return a fraction of the memory that was free at the start, in bytes."""
        if share in (0, math.inf):
            return share
        if self._free is None:  # at the first large tensor, so that small models need no call to the driver
            self._free = free_memory(self.device)
        return share * self._free


def leanest(ran: Sequence[str]) -> str:
    """Return the plan among several that keeps the least on the device."""
    return max(ran, key=_LEANER.index)


def free_memory(device: torch.device) -> float:
    """Return the available memory of a device in bytes, or infinity if it is unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    return host_memory()


def host_memory() -> float:
    """Return the available memory of the host in bytes, or infinity if it is unknown."""
    try:  # Linux reports available memory including caches that can be dropped
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _on_host(x: Tensor) -> Tensor:
    """Copy a tensor to the host, asynchronously if pinned memory is available."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise Error("Tensors offloaded to the host cannot be recorded in a CUDA graph.")  # the recorder then gives up
    if x.nbytes > host_memory() - LEFT_TO_HOST:
        raise MemoryError(f"The host has not enough free memory for {x.nbytes / 2**30:.1f} GiB from {x.device}.")
    try:
        copy = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    except RuntimeError:
        return torch.empty(x.shape, dtype=x.dtype).copy_(x)
    return copy.copy_(x, non_blocking=True)


def _key(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def _weak_reference(x: Tensor) -> StorageWeakRef:
    # While a weak reference exists, no other storage gets the same address, so that `_key` stays unique.
    return StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]


def _is_freed(storage: StorageWeakRef) -> bool:
    return bool(storage.expired())  # type: ignore[no-untyped-call]
