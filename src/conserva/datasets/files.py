"""Published files: found in the folder of datasets, and read whole."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

from ..errors import Error
from .catalogue import FOLDER_VARIABLE


def unzipped(file: str, folder: str | Path | None = None) -> tuple[Path, bytes]:
    """Return the path and the content of a .gz file in `folder`, or else in the one that CONSERVA_DATA names."""
    folder = folder or os.environ.get(FOLDER_VARIABLE) or None
    wanted = f"name the folder that holds it with folder= or the environment variable {FOLDER_VARIABLE}"
    if folder is None:
        raise Error(f"{file!r} is read from a folder of datasets: {wanted}.")
    path = Path(folder).expanduser() / file
    if not path.is_file():
        raise Error(f"{str(folder)!r} has no file {file!r}: {wanted}.")
    try:
        return path, gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise Error(f"{str(path)!r} is no whole .gz file ({error}): write or download it again.") from None
