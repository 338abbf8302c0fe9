"""Pictures from files, opened by Pillow."""

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
"""What is read. Pillow knows more, of which some are programs: it gives PostScript to an interpreter."""

LARGEST_PICTURE = 256 * MEBIBYTE

MOST_PIXELS = 2**26
"""How many pixels a picture may have that a result holds."""


def opened(path: str | Path, given: str) -> Image:
    """Return a picture whose pixels are not read yet; what Pillow raises about its content is the caller's to tell."""
    import PIL.Image

    return PIL.Image.open(io.BytesIO(read_bytes(path, given, LARGEST_PICTURE)), formats=FORMATS)


def decoded_png(held: str, given: str) -> Image:
    """Return the picture that a result holds as a PNG in base64; `given` is what an error calls it."""
    require(given, "PIL")
    import PIL.Image

    try:
        file = PIL.Image.open(io.BytesIO(base64.b64decode(held, validate=True)), formats=["PNG"])
        if file.width * file.height <= MOST_PIXELS:
            return file.convert("RGB")
    except Exception:  # of a damaged file Pillow raises errors of many kinds
        raise Error(f"{given} holds no image: it must be a PNG in base64.") from None
    raise Error(f"{given} has {file.width} x {file.height} pixels: too many to draw.")
