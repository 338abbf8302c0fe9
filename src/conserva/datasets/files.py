"""Published files: found in the folder of datasets, and read whole."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

from .._util.files import MEBIBYTE, expanded, read_bytes
from ..errors import Error
from .catalogue import FOLDER_VARIABLE

LARGEST_UNZIPPED = 256 * MEBIBYTE
"""How much a published file may hold: a small .gz file can hold any number of bytes."""


def unzipped(file: str, folder: str | Path | None = None) -> tuple[Path, bytes]:
    """Return the path and the content of a .gz file in `folder`, or else in the one that CONSERVA_DATA names."""
    folder = folder or os.environ.get(FOLDER_VARIABLE) or None
    wanted = f"name the folder that holds it with folder= or the environment variable {FOLDER_VARIABLE}"
    if folder is None:
        raise Error(f"{file!r} is read from a folder of datasets: {wanted}.")
    path = expanded(folder) / file
    if not os.path.isfile(path):
        raise Error(f"{str(folder)!r} has no file {file!r}: {wanted}.")
    zipped = io.BytesIO(read_bytes(path, repr(str(path)), LARGEST_UNZIPPED))
    try:
        content = gzip.GzipFile(fileobj=zipped).read(LARGEST_UNZIPPED + 1)
    except Exception as error:  # whatever gzip and zlib find
        reason = f"{type(error).__name__}: {error}"
        raise Error(f"{str(path)!r} is not a whole .gz file ({reason}): write or download it again.") from None
    if len(content) > LARGEST_UNZIPPED:
        raise Error(f"{str(path)!r} holds more than {LARGEST_UNZIPPED >> 20} MiB: get the file as published.")
    return path, content
