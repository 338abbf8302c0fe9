"""Images of digits: ten drawn with a few strokes each, images of MNIST by number, and files."""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .._util.extras import require
from .._util.files import MEBIBYTE, expanded, read_bytes
from .._util.pictures import opened
from ..errors import Error
from . import mnist
from .graph import Graph
from .superpixels import superpixels

Point = tuple[float, float]

LARGEST_DIGIT = MEBIBYTE
"""The maximum size in bytes of an array file: 28 x 28 numbers take a few thousand bytes."""

PEN = 1.25
"""Half of the width of strokes, in pixels."""


def _arc(centre: Point, radii: Point, start: float, end: float) -> list[Point]:
    """Return points on an ellipse between two angles in degrees, clockwise from the right."""
    angles = np.radians(np.linspace(start, end, 24))
    (x, y), (wide, high) = centre, radii
    return [(x + wide * float(np.cos(angle)), y + high * float(np.sin(angle))) for angle in angles]


_STROKES: Mapping[int, Sequence[list[Point]]] = {
    0: [_arc((14, 14), (5.5, 8.5), 0, 360)],
    1: [[(11.5, 8), (14.5, 5), (14, 23)]],
    2: [[*_arc((13.5, 9.5), (5, 4.5), 190, 380), (8.5, 22.5), (20, 22)]],
    3: [_arc((13, 9.5), (5, 4.3), 200, 450), _arc((13, 18.2), (5.8, 4.6), 270, 510)],
    4: [[(10.5, 5.5), (8, 15), (19.5, 14.5)], [(17, 7), (15.5, 23)]],
    5: [[(19, 5.5), (11, 5.5), (10, 12.5), *_arc((12.8, 17.2), (5.6, 5.4), 245, 500)]],
    6: [[(17, 5), (11, 11), *_arc((13.6, 17.6), (4.9, 5), 170, 530)]],
    7: [[(8, 6), (19.5, 6), (13, 23)]],
    8: [_arc((14.2, 9.2), (4.2, 4.2), 0, 360), _arc((13.8, 18), (5, 4.8), 0, 360)],
    9: [_arc((13, 10), (4.8, 4.8), 0, 360), [(17.8, 9.5), (17, 15), (14.5, 23)]],
}
"""Digit -> its strokes, as (x, y) in pixels from the upper left corner."""


_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
"""Modes of pictures that can be grey and opaque."""


class Digit(NamedTuple):
    """A 28 x 28 image, white on black, with its label, if known, and its name."""

    image: np.ndarray
    label: int | None
    name: str


def drawn_digit(digit: int) -> np.ndarray:
    """Return a drawn digit as an image like those of MNIST: 28 x 28 uint8, white on black."""
    if digit not in _STROKES:
        raise Error(f"digit={digit!r} is unknown: give 0 to 9.")
    y, x = np.mgrid[:28, :28]
    far = np.full((28, 28), np.inf)
    for stroke in _STROKES[digit]:
        for (ax, ay), (bx, by) in itertools.pairwise(stroke):
            length = (bx - ax) ** 2 + (by - ay) ** 2
            share = np.clip(((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length, 0, 1)
            far = np.minimum(far, np.hypot(x - ax - share * (bx - ax), y - ay - share * (by - ay)))
    image: np.ndarray = np.rint(255 * np.clip(PEN + 0.5 - far, 0, 1)).astype(np.uint8)
    return image


def read_digit(given: str, folder: str | Path | None = None) -> Digit:
    """Return a digit: a drawn one for "7", one of MNIST for "test:12", or one from a file.

    A file is a picture (.png) or an array (.npy) of 28 x 28 pixels, white on black.
    """
    if re.fullmatch(r"\d", given):
        return Digit(drawn_digit(int(given)), None, f"a drawn {given}")
    if match := re.fullmatch(r"(train|validation|test):(\d+)", given):
        file, images, labels, (row,) = mnist.read(match[1], folder, int(match[2]))
        return Digit(images[row], int(labels[row]), f"{file} {row}")
    path = expanded(given)
    if not os.path.isfile(path):
        raise Error(f"{given!r} is not a digit: give 0 to 9, an image of MNIST such as test:12, or a 28 x 28 file.")
    return Digit(_image(path, given), None, path.name)


def _check_size(shape: tuple[int, ...], given: str) -> None:
    if shape != (28, 28):
        raise Error(f"{given!r} is {' x '.join(map(str, shape))} pixels: a digit has 28 x 28, white on black.")


def digit_graph(given: str, folder: str | Path | None = None) -> Graph:
    """Return the superpixel graph of a digit; the parameters are those of `read_digit`."""
    return superpixels(*read_digit(given, folder))


def _image(path: Path, given: str) -> np.ndarray:
    is_array = path.suffix == ".npy"
    if not is_array:
        require(f"Reading {str(path)!r}", "PIL")
    try:
        if is_array:
            array = np.load(io.BytesIO(read_bytes(path, repr(str(path)), LARGEST_DIGIT)), allow_pickle=False)
            _check_size(array.shape, given)
            return np.asarray(array)
        with opened(path, repr(str(path))) as picture:
            _check_size((picture.height, picture.width), given)
            mode, colours = picture.mode, np.asarray(picture.convert("RGBA"))
    except Error:
        raise
    except Exception as error:  # Pillow and numpy raise many types of exceptions
        reason = f"{type(error).__name__}: {error}"
        raise Error(f"{str(path)!r} is not a picture (.png) or array (.npy): {reason}") from None
    grey = colours[:, :, 0]
    if mode not in _MODES or (colours[:, :, :3] != grey[:, :, None]).any() or (colours[:, :, 3] != 255).any():
        raise Error(f"{str(path)!r} has mode {mode!r}: a digit is white on black, give it in 8-bit grey (mode 'L').")
    return grey
