"""What attention saw in an earlier pass over inputs of the same shape, for a recording, which cannot look at masks.

Some models leave a causal mask away where they can tell that nothing else is masked, and spell it out where they
cannot: inside a recording. There it is taken for what it was, and the recording itself checks that it still is that.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..checks import require
from ..errors import Error


class Remembered:
    """For each call of fused attention, in order, whether it was causal without a mask."""

    def __init__(self) -> None:
        self._was_causal: list[bool] = []
        self._calls = 0
        self._checked: list[Tensor] = []

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Note the calls inside, or, in a recording, answer by what was noted."""
        self._calls, self._checked = 0, []
        _here.remembered = self
        try:
            yield
        finally:
            _here.remembered, self._checked = None, []

    def next_call(self, mask: Any, is_causal: bool) -> tuple[Any, bool]:
        """Return what the next call sees."""
        i, self._calls = self._calls, self._calls + 1
        if not is_recording():
            self._was_causal[i:] = [mask is None and is_causal]
            return mask, is_causal
        spelled_out = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape[-1] == mask.shape[-2]
        if not spelled_out or i >= len(self._was_causal) or not self._was_causal[i]:
            return mask, is_causal
        if not any(mask is one for one in self._checked):  # layers are given the same one
            self._checked.append(mask)
            causal = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril_()
            require((mask == causal).all(), lambda: Error("A recording met another mask than the passes before it."))
        return None, True


def as_before(mask: Any, is_causal: bool) -> tuple[Any, bool]:
    """Return what a call of fused attention sees, as it is given, or as it was before where a recording is made."""
    remembered: Remembered | None = getattr(_here, "remembered", None)
    return (mask, is_causal) if remembered is None else remembered.next_call(mask, is_causal)


def is_recording() -> bool:
    """Return whether a CUDA graph is being recorded."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


_here = threading.local()
