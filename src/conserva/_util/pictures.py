"""Reading pictures with Pillow."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Error
from .extras import require
from .files import MEBIBYTE, read_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The accepted formats. Pillow reads more, some of them unsafe: it runs PostScript in an interpreter."""

LARGEST_PICTURE = 256 * MEBIBYTE

MOST_PIXELS = 2**26
"""The maximum number of pixels of a picture in a result."""


def opened(path: str | Path, given: str) -> Image:
    """Open a picture without decoding its pixels; the caller handles what Pillow raises about the content."""
    import PIL.Image

    return PIL.Image.open(io.BytesIO(read_bytes(path, given, LARGEST_PICTURE)), formats=FORMATS)


def decoded_png(encoded: str, given: str) -> Image:
    """Return the picture of a base64-encoded PNG; `given` is what error messages call it."""
    require(given, "PIL")
    import PIL.Image

    try:
        file = PIL.Image.open(io.BytesIO(base64.b64decode(encoded, validate=True)), formats=["PNG"])
        if file.width * file.height <= MOST_PIXELS:
            return file.convert("RGB")
    except Exception:  # Pillow raises many types of exceptions for damaged files
        raise Error(f"{given} is not an image: it must be a base64-encoded PNG.") from None
    raise Error(f"{given} has {file.width} x {file.height} pixels, the limit is {MOST_PIXELS:,} in all.")
