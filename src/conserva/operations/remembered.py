"""What attention saw in earlier passes over inputs of the same shape, for a recording, which cannot look at masks.

Some models leave a mask away where they can tell that it hides nothing, or nothing but what comes later, and spell it
out where they cannot: inside a recording. There it is taken for what it was, and the recording itself checks that it
still is that: masks have kernels of their own, which round otherwise.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..checks import require
from ..errors import Error


class Remembered:
    """For each call of fused attention, in order: if it had no mask, whether it was causal; None if it had one."""

    def __init__(self) -> None:
        self._saw: list[bool | None] = []
        self.recorded_as_before = True
        """Whether the last recording saw in every call what the pass before it saw."""
        self.bytes: int | None = None
        """What lay on the device at the calls of a pass, at the most, beside what was there before it."""

    @contextlib.contextmanager
    def during(self, weighed_on: torch.device | None = None) -> Iterator[None]:
        """Note the calls inside, or, in a recording, answer by what was noted. If asked, weigh a device."""
        before = 0 if weighed_on is None else torch.cuda.memory_allocated(weighed_on)
        _here.calls = calls = _Calls(self._saw, weighed_on)
        try:
            yield
        finally:
            _here.calls = None
        if weighed_on is not None:
            self.bytes = max(0, calls.most_bytes - before)
        if is_recording():
            self.recorded_as_before = calls.see == self._saw
        else:
            self._saw = calls.see


class _Calls:
    """The calls of one pass."""

    def __init__(self, before: Sequence[bool | None], weighed_on: torch.device | None) -> None:
        self.see: list[bool | None] = []
        self.most_bytes = 0
        self._weighed_on = weighed_on
        self._before = iter(before)
        self._checked: list[Tensor] = []

    def next_call(self, mask: Any, is_causal: bool, pairs: tuple[int, int]) -> tuple[Any, bool]:
        """Return what the next call sees, among so many queries and keys."""
        self.weigh()
        if is_recording():
            mask, is_causal = self._as_it_was(mask, is_causal, pairs, next(self._before, None))
        self.see.append(is_causal if mask is None else None)
        return mask, is_causal

    def weigh(self) -> None:
        """Look how much lies on the device."""
        if self._weighed_on is not None:
            self.most_bytes = max(self.most_bytes, torch.cuda.memory_allocated(self._weighed_on))

    def _as_it_was(
        self, mask: Any, is_causal: bool, pairs: tuple[int, int], was_causal: bool | None
    ) -> tuple[Any, bool]:
        """Leave away a mask that the same call did without before."""
        spelled_out = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape[-2:] == pairs
        if was_causal is None or not spelled_out:
            return mask, is_causal
        if not any(mask is one for one in self._checked):  # layers are given the same one
            self._checked.append(mask)
            seen = torch.ones(pairs, dtype=torch.bool, device=mask.device)
            as_before = (mask == (seen.tril_() if was_causal else seen)).all()
            require(as_before, lambda: Error("A recording met another mask than the passes before it."))
        return None, was_causal


def as_before(mask: Any, is_causal: bool, queries: int, keys: int) -> tuple[Any, bool]:
    """Return what a call of fused attention sees, as it is given, or as it was before where a recording is made."""
    calls: _Calls | None = getattr(_here, "calls", None)
    return (mask, is_causal) if calls is None else calls.next_call(mask, is_causal, (queries, keys))


def weigh() -> None:
    """Look how much lies on the device, if someone asked for it."""
    calls: _Calls | None = getattr(_here, "calls", None)
    if calls is not None:
        calls.weigh()


def is_recording() -> bool:
    """Return whether a CUDA graph is being recorded."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


_here = threading.local()
