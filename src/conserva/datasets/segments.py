"""Superpixels of images of digits, by SLIC. Also a script, which reads images from stdin and writes maps to stdout.

It imports nothing else of the package, so that worker processes start quickly.
"""

from __future__ import annotations

import sys

import numpy as np
from skimage.segmentation import slic

SIDE = 28
"""The height and width of images."""

REGIONS = 75
"""The number of superpixels, as in the graphs of Monti et al. (CVPR 2017); some images have slightly fewer."""

COMPACTNESS = 0.5
"""The weight of distance relative to intensity in SLIC: from 1 on, the result is a grid for every image."""


def segmented(image: np.ndarray) -> np.ndarray:
    """Return the superpixel of each pixel, for an image with values from 0 to 1.

    SLIC starts from a grid of 81 and usually returns as many. Then the neighbours with the smallest difference in mean
    intensity are merged until 75 are left; of equal differences, usually between black regions, the smallest are
    merged.
    """
    labels: np.ndarray = slic(
        image,
        n_segments=REGIONS,
        compactness=COMPACTNESS,
        channel_axis=None,
        start_label=0,
        enforce_connectivity=True,
    )
    while labels.max() >= REGIONS:
        sizes = np.bincount(labels.ravel())
        means = np.bincount(labels.ravel(), image.ravel()) / sizes
        a, b = np.nonzero(np.triu(neighbours(labels)))
        best = np.lexsort((b, a, sizes[a] + sizes[b], np.abs(means[a] - means[b])))[0]
        labels = np.where(labels == b[best], a[best], labels)
        labels -= labels > b[best]
    return labels.astype(np.uint8)


def neighbours(labels: np.ndarray) -> np.ndarray:
    """Return which regions are adjacent, regions x regions, by pixels that are horizontal or vertical neighbours."""
    count = int(labels.max()) + 1
    touch = np.zeros((count, count), bool)
    touch[labels[:, :-1], labels[:, 1:]] = True
    touch[labels[:-1], labels[1:]] = True
    touch |= touch.T
    np.fill_diagonal(touch, False)
    return touch


if __name__ == "__main__":
    for pixels in np.frombuffer(sys.stdin.buffer.read(), np.uint8).reshape(-1, SIDE, SIDE):
        sys.stdout.buffer.write(segmented(pixels / 255).tobytes())
