"""The number of CPU cores available to this process."""

from __future__ import annotations

import os


def cores() -> int:
    """Return the number of CPU cores this process may use, which can be smaller than `os.cpu_count()`."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
