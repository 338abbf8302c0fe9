"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield another name to write under; what is there at the end takes the file's place at once."""
    half = path.with_name(f"{path.name}.{os.getpid()}.half")
    try:
        yield half
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)
