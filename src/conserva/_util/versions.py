"""The versions of Python and of packages, for provenance."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

_version = cache(metadata.version)  # which looks through all folders of installed packages


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of conserva, torch, transformers, of more packages, and of Python."""
    names = ("conserva", "torch", "transformers", *packages)
    return {**{name: _version(name) for name in names}, "python": platform.python_version()}
