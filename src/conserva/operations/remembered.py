"""What attention saw in an earlier pass over inputs of the same shape, for a recording, which cannot look at masks.

Some models leave a causal mask away where they can tell that nothing else is masked, and spell it out where they
cannot: inside a recording. There it is taken for what it was, and the recording itself checks that it still is that.
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
    """For each call of fused attention, in order, whether it was causal without a mask."""

    def __init__(self) -> None:
        self._were_causal: Sequence[bool] = ()

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Note the calls inside, or, in a recording, answer by what was noted."""
        _here.calls = calls = _Calls(self._were_causal)
        try:
            yield
        finally:
            _here.calls = None
        if calls.noted:
            self._were_causal = calls.noted


class _Calls:
    """The calls of one pass."""

    def __init__(self, before: Sequence[bool]) -> None:
        self.noted: list[bool] = []
        self._before = iter(before)
        self._checked: list[Tensor] = []

    def next_call(self, mask: Any, is_causal: bool) -> tuple[Any, bool]:
        """Return what the next call sees."""
        if not is_recording():
            self.noted.append(mask is None and is_causal)
            return mask, is_causal
        was_causal = next(self._before, False)
        spelled_out = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape[-1] == mask.shape[-2]
        if not spelled_out or not was_causal:
            return mask, is_causal
        if not any(mask is one for one in self._checked):  # layers are given the same one
            self._checked.append(mask)
            causal = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril_()
            require((mask == causal).all(), lambda: Error("A recording met another mask than the passes before it."))
        return None, True


def as_before(mask: Any, is_causal: bool) -> tuple[Any, bool]:
    """Return what a call of fused attention sees, as it is given, or as it was before where a recording is made."""
    calls: _Calls | None = getattr(_here, "calls", None)
    return (mask, is_causal) if calls is None else calls.next_call(mask, is_causal)


def is_recording() -> bool:
    """Return whether a CUDA graph is being recorded."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


_here = threading.local()
