"""The cache: folders of files that can be made again, checked when they are read, and written atomically."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import Error
from .files import check_space, expanded, read_text, write_text, writing

MANIFEST = "manifest.json"
"""The file in every cached folder that lists the others, with their hashes."""

_TEMPORARY = ".writing-"
_ABANDONED = 24 * 3600
"""The age in seconds after which a temporary folder is taken for the remains of a process that was killed."""


def cache_folder() -> Path:
    """Return the folder of the cache: CONSERVA_CACHE, or `conserva` in the platform's folder for caches."""
    if own := os.environ.get("CONSERVA_CACHE"):
        return expanded(own)
    if sys.platform == "darwin":
        base = "~/Library/Caches"
    elif sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or ""
        base = base if os.path.isabs(base) else "~/.cache"  # relative paths are to be ignored, by its specification
    return expanded(base) / "conserva"


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest, block = hashlib.sha256(), bytearray(2**20)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(memoryview(block)[:size])
    return digest.hexdigest()


def cached(key: str) -> Path | None:
    """Return the cached folder with a key; None if there is none. One that is damaged is deleted."""
    folder = cache_folder() / key
    try:
        if not folder.is_dir():
            return None
        manifest = json.loads(read_text(folder / MANIFEST, MANIFEST))
        hashes = {path.name: file_hash(path) for path in folder.iterdir() if path.name != MANIFEST}
    except (OSError, ValueError, RecursionError, Error):
        manifest, hashes = None, {}
    if hashes and hashes == manifest:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    return None


def store(key: str, write: Callable[[Path], None], size: int) -> Path | None:
    """Write a folder to the cache and return it; None if it cannot be written.

    Other processes see the folder only once it is complete. If two write the same, one of them is kept.

    Parameters
    ----------
    key
        Identifies the content: equal keys have equal content.
    write
        Writes the files into the folder that it is given.
    size
        About how many bytes it writes.
    """
    folder = cache_folder() / key
    temporary = folder.with_name(f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with writing(folder):
            temporary.mkdir(parents=True)
            _remove_abandoned(folder.parent)
            check_space(temporary, "the cache", size)
            write(temporary)
            hashes = {path.name: file_hash(path) for path in temporary.iterdir()}
            write_text(temporary / MANIFEST, json.dumps(hashes, indent=1))
            try:
                temporary.rename(folder)
            except OSError:  # another process was faster, or the rename failed for good
                return cached(key)
    except Error:
        return None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob(f"{_TEMPORARY}*"):
        if path.stat().st_mtime < time.time() - _ABANDONED:
            shutil.rmtree(path, ignore_errors=True)
