"""Pictures from files, opened by Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from .files import MEBIBYTE, read_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is read. Pillow knows more, of which some are programs: it gives PostScript to an interpreter."""

LARGEST_PICTURE = 256 * MEBIBYTE


def opened(path: str | Path, given: str) -> Image:
    """Return a picture whose pixels are not read yet; what Pillow raises about its content is the caller's to tell."""
    import PIL.Image

    return PIL.Image.open(io.BytesIO(read_bytes(path, given, LARGEST_PICTURE)), formats=FORMATS)
