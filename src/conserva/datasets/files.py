"""Reading of published .gz files from the folder of datasets."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

from .._util.files import MEBIBYTE, expanded, read_bytes
from ..errors import Error
from .catalogue import FOLDER_VARIABLE

LARGEST_UNZIPPED = 256 * MEBIBYTE
"""The maximum size in bytes of a decompressed file: a small .gz file can decompress to any size."""


def unzipped(file: str, folder: str | Path | None = None) -> tuple[Path, bytes]:
    """Return the path and the decompressed content of a .gz file in `folder`, by default the one in CONSERVA_DATA."""
    folder = folder or os.environ.get(FOLDER_VARIABLE) or None
    wanted = f"give the folder that contains it with folder= or the environment variable {FOLDER_VARIABLE}"
    if folder is None:
        raise Error(f"{file!r} is read from a folder of datasets: {wanted}.")
    path = expanded(folder) / file
    if not os.path.isfile(path):
        raise Error(f"{str(folder)!r} has no file {file!r}: {wanted}.")
    zipped = io.BytesIO(read_bytes(path, repr(str(path)), LARGEST_UNZIPPED))
    try:
        content = gzip.GzipFile(fileobj=zipped).read(LARGEST_UNZIPPED + 1)
    except Exception as error:  # gzip and zlib raise many types of exceptions
        reason = f"{type(error).__name__}: {error}"
        raise Error(f"{str(path)!r} is not a complete .gz file ({reason}): download it again.") from None
    if len(content) > LARGEST_UNZIPPED:
        raise Error(f"{str(path)!r} contains more than {LARGEST_UNZIPPED >> 20} MiB: download the published file.")
    return path, content
