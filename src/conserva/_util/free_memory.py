"""Memory that the C library keeps after it was freed."""

from __future__ import annotations

import ctypes
import sys


def release_freed_memory() -> None:
    """Return freed memory to the system: glibc keeps it, and its heap fragments as tensors of all sizes come and go."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)
