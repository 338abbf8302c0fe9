"""MNIST in its published files: images of handwritten digits, 28 x 28 uint8, white on black."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from ..errors import Error
from .catalogue import SPLITS
from .files import unzipped

HELD_OUT = 5_000
"""The number of images of train that are held out for validation, since no validation split was published."""


@dataclass(frozen=True)
class Idx:
    """A published file in the idx format: its magic number, its shape, and the MD5 of its content."""

    file: str
    magic: int
    shape: tuple[int, ...]
    md5: str


IMAGES = {
    "train": Idx("train-images-idx3-ubyte.gz", 2051, (60_000, 28, 28), "6bbc9ace898e44ae57da46a324031adb"),
    "test": Idx("t10k-images-idx3-ubyte.gz", 2051, (10_000, 28, 28), "2646ac647ad5339dbf082846283269ea"),
}
LABELS = {
    "train": Idx("train-labels-idx1-ubyte.gz", 2049, (60_000,), "a25bea736e30d166cdddb491f175f624"),
    "test": Idx("t10k-labels-idx1-ubyte.gz", 2049, (10_000,), "27ae3e4e09519cfbb04c329615203637"),
}


class Digits(NamedTuple):
    """The images and labels of a published file, and the rows of it that belong to a split."""

    file: str
    images: np.ndarray
    labels: np.ndarray
    rows: np.ndarray


def read(split: str, folder: str | Path | None = None, only: int | None = None) -> Digits:
    """Return train (55,000 images), validation (5,000, held out of the published train) or test (10,000).

    They are read from "mnist/" in `folder`, by default the one in CONSERVA_DATA. With `only`, an index in the split,
    the rows contain that image alone.
    """
    if split not in SPLITS:
        raise Error(f"split={split!r} is unknown: MNIST has {', '.join(SPLITS)}.")
    file = "test" if split == "test" else "train"
    images, labels = _content(IMAGES[file], folder), _content(LABELS[file], folder)
    rows = _rows(split, len(images))
    if only is not None:
        if not 0 <= only < len(rows):
            raise Error(f"Image {only} of {split} does not exist: it has 0 to {len(rows) - 1}.")
        rows = rows[only : only + 1]
    return Digits(file, images, labels, rows)


def _content(idx: Idx, folder: str | Path | None) -> np.ndarray:
    path, content = unzipped(f"mnist/{idx.file}", folder)
    start = 4 + 4 * len(idx.shape)
    expected = (idx.magic, *idx.shape)
    if len(content) < start:
        raise Error(f"{str(path)!r} has {len(content)} bytes: it is not an idx file.")
    header = tuple(int(number) for number in np.frombuffer(content[:start], ">i4"))
    if header != expected:
        raise Error(f"{str(path)!r} starts with the numbers {header}, not {expected}: download the published MNIST.")
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 != idx.md5:
        raise Error(f"{str(path)!r} has the MD5 {md5}, not {idx.md5}: download the published MNIST.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(idx.shape)


def _rows(split: str, count: int) -> np.ndarray:
    """Return the rows of a split in its file."""
    if split == "test":
        return np.arange(count)
    out = np.zeros(count, bool)
    out[Random(0).sample(range(count), HELD_OUT)] = True
    return np.flatnonzero(out == (split == "validation"))
