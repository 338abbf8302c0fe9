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

from ...errors import Error
from ..checks import require


class Remembered:
    """For each call of fused attention, in order: if it had no mask, whether it was causal; None if it had one."""

    def __init__(self) -> None:
        self._saw: list[bool | None] = []
        self.recorded_as_before = True
        """Whether the last recording saw in every call what the pass before it saw."""

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Note the calls inside, or, in a recording, answer by what was noted."""
        _here.calls = calls = _Calls(self._saw)
        try:
            yield
        finally:
            _here.calls = None
        if is_recording():
            self.recorded_as_before = calls.see == self._saw
        else:
            self._saw = calls.see


class _Calls:
    """The calls of one pass."""

    def __init__(self, before: Sequence[bool | None]) -> None:
        self.see: list[bool | None] = []
        self._before = iter(before)
        self._checked: list[tuple[Tensor, bool]] = []

    def next_call(self, query: Any, key: Any, mask: Any, is_causal: bool) -> tuple[Any, bool]:
        """Return what the next call sees."""
        if is_recording():
            was_causal = next(self._before, None)
            if was_causal is not None and isinstance(mask, Tensor) and mask.dtype == torch.bool:
                mask, is_causal = self._as_it_was(query, key, mask, was_causal)
        self.see.append(is_causal if mask is None else None)
        return mask, is_causal

    def _as_it_was(self, query: Tensor, key: Tensor, mask: Tensor, was_causal: bool) -> tuple[Tensor | None, bool]:
        """Leave away a mask that the same call did without before."""
        pairs = (query.shape[-2], key.shape[-2])
        if mask.shape[-2:] != pairs:
            return mask, False
        if not any(mask is one and was_causal == causal for one, causal in self._checked):  # which layers share
            self._checked.append((mask, was_causal))
            seen = torch.ones(pairs, dtype=torch.bool, device=mask.device)
            as_before = (mask == (seen.tril_() if was_causal else seen)).all()
            require(as_before, lambda: Error("A recording met another mask than the passes before it."))
        return None, was_causal


def as_before(query: Any, key: Any, mask: Any, is_causal: bool) -> tuple[Any, bool]:
    """Return what a call of fused attention sees, as it is given, or as it was before where a recording is made."""
    calls: _Calls | None = getattr(_here, "calls", None)
    return (mask, is_causal) if calls is None else calls.next_call(query, key, mask, is_causal)


def is_recording() -> bool:
    """Return whether a CUDA graph is being recorded."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


_here = threading.local()
