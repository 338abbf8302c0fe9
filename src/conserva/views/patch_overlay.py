"""Explanations of images: the image in grey, each patch covered with the colour of its score."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .._util.pictures import decoded_png
from ..errors import Error
from ..results.explanation import Explanation
from .colours import AGAINST, FOR, RGB, hexadecimal
from .picture_nodes import in_picture, node_scores, tooltip
from .vector_drawing import Drawing, Inset, Raster, Shape, rectangle

if TYPE_CHECKING:
    from PIL.Image import Image

SIZE, MARGIN = 300, 10
DENSEST = 0.8
"""The opacity of the largest score; less than 1, so that the image shows through."""

DARKEST = 120
"""The grey level of black pixels, of 255: blue would be invisible on darker ones."""


def overlay_drawing(explanation: Explanation, scale: float | None, size: int = SIZE) -> Drawing:
    """Return an image in grey with coloured patches, or the original image if `scale` is None."""
    image = decoded(explanation)
    zoom = (size - 2 * MARGIN) / max(image.size)
    wide, high = zoom * image.width, zoom * image.height
    ground = _enlarged(image if scale is None else grey(image), int(zoom))
    parts: list[Raster | Shape] = [Raster(_encoded(ground), wide, high)]
    if scale is not None:
        parts += _patches(explanation, scale, wide, high)
    return Drawing(2 * MARGIN + wide, 2 * MARGIN + high, (Inset(MARGIN, MARGIN, 1, Drawing(wide, high, tuple(parts))),))


def _patches(explanation: Explanation, scale: float, wide: float, high: float) -> Iterator[Shape]:
    rows, columns = grid_of(explanation)
    down, across = high / rows, wide / columns
    for patch, score in node_scores(explanation).items():
        row, column = divmod(patch, columns)
        path = rectangle(column * across, row * down, across, down)
        colour, opacity = patch_colour(score, scale)
        title = tooltip(explanation, patch)
        yield Shape(path, hexadecimal(colour), opacity=round(opacity, 3), node=patch, title=title)


def patch_colour(score: float, scale: float) -> tuple[RGB, float]:
    """Return colour and opacity of the overlay of a patch."""
    return FOR if score > 0 else AGAINST, DENSEST * min(1.0, abs(score) / scale)


def blended(ground: RGB, score: float, scale: float) -> RGB:
    """Return the colour of a pixel blended with the overlay of its patch, for terminals."""
    colour, opacity = patch_colour(score, scale)
    mixed = [round(low + (high - low) * opacity) for low, high in zip(ground, colour, strict=True)]
    return mixed[0], mixed[1], mixed[2]


def grid_of(explanation: Explanation) -> tuple[int, int]:
    """Return the numbers of rows and columns of patches; raise `Error` unless each patch has one score."""
    rows, columns = in_picture(explanation, "image", "grid")
    scored = sorted(node_scores(explanation))
    if scored != list(range(rows * columns)):
        raise Error(
            f"The picture of {explanation.text!r} has {rows} x {columns} patches, but the explanation has scores for "
            f"{len(scored)}, which do not match: use the picture of the image that was explained."
        )
    return rows, columns


def decoded(explanation: Explanation) -> Image:
    """Return the explained image, decoded, in the size that the model gets."""
    return decoded_png(in_picture(explanation, "image", "image"), f"The picture of {explanation.text!r}")


def grey(image: Image) -> Image:
    """Return an image in light greys, against which red and blue stand out."""
    return image.convert("L").point([DARKEST + round(level * (255 - DARKEST) / 255) for level in range(256)])


def _enlarged(image: Image, times: int) -> Image:
    """Return an image enlarged by an integer factor without interpolation: browsers would blur small images."""
    size = image.width * max(1, times), image.height * max(1, times)
    return image.resize(size, _pillow().Resampling.NEAREST)


def _encoded(image: Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError:
        raise Error("A picture of an image needs Pillow: pip install 'conserva[images]'.") from None
    return PIL.Image
