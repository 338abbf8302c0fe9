"""How what the backward pass needs is kept: whole on the device, made anew from something smaller, or on the host."""

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
"""From so many elements on a tensor is worth a fused function: below, torch's own graph has less to do in Python."""

LEFT_TO_HOST = 2**32
"""What stays free of the host's memory: a system that runs out of it ends the process without a word."""

SMALL_BYTES = 2**20
"""What is smaller stays where it is, uncounted."""

OFFLOADED = ("cuda",)
"""The kinds of devices whose memory is smaller than the host's."""

WHOLE, RECOMPUTE, OFFLOAD = "whole", "recompute", "offload"
AUTO = "auto"
_LEANER = (WHOLE, RECOMPUTE, OFFLOAD)

_Result = TypeVar("_Result")


IN_PASSING = 4
"""How many tensors as large as the largest a gated MLP makes in passing: gate, its activation, up and their product."""


@dataclass(frozen=True)
class Plan:
    """Shares of the memory that was free at the start: for activations kept whole, and for all that is kept.

    Of the second, room for what a model makes in passing is left free.
    """

    name: str
    whole: float
    device: float


PLANS = {
    plan.name: plan for plan in (Plan(WHOLE, math.inf, math.inf), Plan(RECOMPUTE, 0, math.inf), Plan(OFFLOAD, 0, 0))
}
"""The plans that a user can ask for by name."""

CHOICES = (AUTO, *PLANS)

_AUTO_ON_CUDA = (Plan(AUTO, 0.08, 0.85), Plan(RECOMPUTE, 0, 0.4), PLANS[OFFLOAD])
_AUTO_ON_HOST = (Plan(AUTO, 0.5, math.inf), PLANS[RECOMPUTE])


def plans(checkpoint: str, device: torch.device) -> tuple[Plan, ...]:
    """Return the plans to try one after the other."""
    if checkpoint not in CHOICES:
        raise Error(f"checkpoint={checkpoint!r} is not a memory plan: choose one of {', '.join(map(repr, CHOICES))}.")
    if checkpoint != AUTO:
        return (PLANS[checkpoint],)
    return _AUTO_ON_CUDA if device.type == "cuda" else _AUTO_ON_HOST


def within_memory(checkpoint: str, device: torch.device, run: Callable[[Plan | None], _Result]) -> _Result:
    """Run under one plan after the other until one fits.

    A model may change a tensor in place that a plan relied on, or have checkpoints of its own, which plans that
    change their mind confuse. Torch finds both out, and such a model is run without a plan.
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
                    "The model changes a tensor in place that its own gradient needs, so that torch cannot "
                    f"differentiate it: {str(error).split(' Hint:')[0]} Make that call out of place."
                ) from None
            elif plan is None or not (isinstance(error, CheckpointError) or "inplace operation" in str(error)):
                raise
            else:
                waiting = [None]
        # Out here the traceback is gone, and with it the frames that held what the failed try had kept.
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    leaner = "" if checkpoint in (AUTO, OFFLOAD) else f", or pass checkpoint={AUTO!r}"
    raise OutOfMemory(
        f"checkpoint={checkpoint!r}: the explanation does not fit into the memory of {device} (plans tried: "
        f"{', '.join(tried)}). Explain fewer or shorter inputs at a time{leaner}."
    )


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on whatever device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError, OutOfMemory)):
        return True
    return isinstance(error, RuntimeError) and ("out of memory" in str(error) or "can't allocate memory" in str(error))


class Tally:
    """Bytes that are kept, each storage once, as long as it is there."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._bytes = 0

    def has(self, x: Tensor) -> bool:
        """Tell whether the storage of `x` is counted."""
        return _key(x) in self._storages

    def count(self, x: Tensor) -> None:
        """Count the storage of `x`."""
        if not self.has(x):
            self._storages[_key(x)] = (_weakly(x), x.untyped_storage().nbytes())
            self._bytes += x.untyped_storage().nbytes()

    def has_room(self, x: Tensor, limit: float) -> bool:
        """Tell whether the storage of `x` fits below a limit."""
        more = x.untyped_storage().nbytes()
        if more <= limit < self._bytes + more:
            # What a later function made needless may be gone by now.
            self._storages = {key: kept for key, kept in self._storages.items() if not _is_gone(kept[0])}
            self._bytes = sum(size for _, size in self._storages.values())
        return self._bytes + more <= limit


class Keeper:
    """What one pass keeps for its gradient, and how."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan = plan
        self.device = device
        self.leanest = WHOLE
        self._free: float | None = None
        self._largest = 0
        self._whole, self._kept = Tally(), Tally()
        self._copies: dict[tuple[object, ...], tuple[StorageWeakRef, Tensor]] = {}

    def is_large(self, x: Tensor) -> bool:
        """Tell whether it is worth thinking about how to keep `x`."""
        large = x.numel() >= LARGE
        if large and x.nbytes > self._largest:
            self._largest = x.nbytes
        return large

    def keeps_whole(self, x: Tensor) -> bool:
        """Tell whether there is room to keep an activation as it is; if so, it is counted."""
        if x.nbytes < SMALL_BYTES or self._whole.has(x):
            return True
        if not self._whole.has_room(x, self._limit(self.plan.whole)):
            return False
        self._whole.count(x)
        self._kept.count(x)
        return True

    def recomputes(self) -> None:
        """Note that something is made anew."""
        self._note(RECOMPUTE)

    def pack(self, x: Tensor) -> Tensor:
        """Return what to save for the backward pass in the place of `x`: itself, or its copy on the host."""
        x = x.detach()  # without what the tensor remembers of the forward pass, which would live as long as it does
        if x.nbytes < SMALL_BYTES or x.device.type not in OFFLOADED or self._kept.has(x):
            return x
        place = (_key(x), x.storage_offset(), x.shape, x.stride(), x.dtype, x._version)
        known = self._copies.get(place)
        if known is not None:
            return known[1]
        if self._kept.has_room(x, self._limit(self.plan.device) - IN_PASSING * self._largest):
            self._kept.count(x)
            return x
        self._note(OFFLOAD)
        self._copies = {at: copy for at, copy in self._copies.items() if not _is_gone(copy[0])}
        copy = _on_host(x)
        self._copies[place] = (_weakly(x), copy)
        return copy

    @staticmethod
    def unpack(x: Tensor, device: torch.device) -> Tensor:
        """Return what `pack` was given, back on its device."""
        return x if x.device == device else x.to(device, non_blocking=True)

    def _note(self, what: str) -> None:
        self.leanest = leanest((self.leanest, what))

    def _limit(self, share: float) -> float:
        """Return a share of the memory that was free at the start, in bytes."""
        if share in (0, math.inf):
            return share
        if self._free is None:  # asked with the first large tensor: small models never wait for the driver's answer
            self._free = free_memory(self.device)
        return share * self._free


def leanest(ran: Sequence[str]) -> str:
    """Return the one of several plans that kept the least."""
    return max(ran, key=_LEANER.index)


def free_memory(device: torch.device) -> float:
    """Return how many bytes can still be had on a device, and infinity where that is unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    return host_memory()


def host_memory() -> float:
    """Return how many bytes the host can still give, and infinity where that is unknown."""
    try:  # what the system could give, caches included, where it tells
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _on_host(x: Tensor) -> Tensor:
    """Copy to the host, beside the computation where page-locked memory can be had."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise Error("What is moved to the host cannot be recorded.")  # the recorder then gives up
    if x.nbytes > host_memory() - LEFT_TO_HOST:
        raise MemoryError(f"The host has no room left for {x.nbytes / 2**30:.1f} GiB from {x.device}.")
    try:
        copy = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    except RuntimeError:
        return torch.empty(x.shape, dtype=x.dtype).copy_(x)
    return copy.copy_(x, non_blocking=True)


def _key(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def _weakly(x: Tensor) -> StorageWeakRef:
    # While there is a weak reference, no other storage gets this one's address: it stays its name.
    return StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]


def _is_gone(storage: StorageWeakRef) -> bool:
    return bool(storage.expired())  # type: ignore[no-untyped-call]
