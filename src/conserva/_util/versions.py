"""Versions of Python and of packages, as recorded in results."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

from .version import __version__

_version = cache(metadata.version)  # cached: it searches all folders of installed packages


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of conserva, torch, transformers, the given packages, and Python."""
    names = ("torch", "transformers", *packages)
    return {"conserva": __version__, **{name: _version(name) for name in names}, "python": platform.python_version()}
