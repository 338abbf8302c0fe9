"""Attention masks of earlier passes over inputs of the same shape, for CUDA graph capture.

Some models drop a mask if its values show that it masks nothing, or is causal. During capture they cannot read the
values, and pass the mask. Attention with a mask uses other kernels, which round differently. So during capture such a
mask is dropped as it was in the passes before, and the recording checks in every replay that the mask may be dropped.
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


class MaskHistory:
    """For each call of fused attention in the last pass: whether it was causal, or None if it had a mask."""

    def __init__(self) -> None:
        self._last: list[bool | None] = []
        self.matched_history = True
        """Whether all calls of the last recording were masked as in the pass before it."""

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Record the calls inside the block or, during capture, drop masks as in the recorded pass."""
        _here.calls = calls = _Calls(self._last)
        try:
            yield
        finally:
            _here.calls = None
        if is_recording():
            self.matched_history = calls.seen == self._last
        else:
            self._last = calls.seen


class _Calls:
    """The calls of fused attention in one pass."""

    def __init__(self, before: Sequence[bool | None]) -> None:
        self.seen: list[bool | None] = []
        self._before = iter(before)
        self._checked: list[tuple[Tensor, bool]] = []

    def next_call(self, query: Any, key: Any, mask: Any, is_causal: bool) -> tuple[Any, bool]:
        """Return the mask and `is_causal` of the next call."""
        if is_recording():
            was_causal = next(self._before, None)
            if was_causal is not None and isinstance(mask, Tensor) and mask.dtype == torch.bool:
                mask, is_causal = self._dropped(query, key, mask, was_causal)
        self.seen.append(is_causal if mask is None else None)
        return mask, is_causal

    def _dropped(self, query: Tensor, key: Tensor, mask: Tensor, was_causal: bool) -> tuple[Tensor | None, bool]:
        """Drop the mask of a call that had none in the pass before, and check that it is equivalent."""
        pairs = (query.shape[-2], key.shape[-2])
        if mask.shape[-2:] != pairs:
            return mask, False
        if not any(mask is checked and was_causal == causal for checked, causal in self._checked):  # shared by layers
            self._checked.append((mask, was_causal))
            ones = torch.ones(pairs, dtype=torch.bool, device=mask.device)
            is_equivalent = (mask == (ones.tril_() if was_causal else ones)).all()
            require(is_equivalent, lambda: Error("The attention mask differs from that of the passes before."))
        return None, was_causal


def as_in_previous_pass(query: Any, key: Any, mask: Any, is_causal: bool) -> tuple[Any, bool]:
    """Return the mask and `is_causal` of a call of fused attention: as given or, in capture, as in the last pass."""
    calls: _Calls | None = getattr(_here, "calls", None)
    return (mask, is_causal) if calls is None else calls.next_call(query, key, mask, is_causal)


def is_recording() -> bool:
    """Return whether a CUDA graph is being captured on the current stream."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


_here = threading.local()
