"""Superpixels of images of digits, by SLIC. Also a program: the bytes of images in, the bytes of maps out.

As a program it imports nothing of the package, so that a process which shares the work starts at once.
"""

from __future__ import annotations

import sys

import numpy as np
from skimage.segmentation import slic

SIDE = 28
"""Images are as high and as wide as this."""

REGIONS = 75
"""The superpixels of an image, as in the graphs of Monti et al. (CVPR 2017); some images have a few less."""

COMPACTNESS = 0.5
"""How much SLIC looks at places and how little at intensities: from 1 on it finds a grid, whatever the image."""


def segmented(image: np.ndarray) -> np.ndarray:
    """Return the region of each pixel, from an image with values from 0 to 1.

    SLIC starts from a grid of 81 and mostly keeps that many. Then the two neighbours that are most alike in their mean
    intensity become one, until 75 are left; of those alike, mostly black, the two that are smallest together.
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
    """Return which regions touch, regions x regions: a pixel of one lies beside, above or below one of the other."""
    count = int(labels.max()) + 1
    touch = np.zeros((count, count), bool)
    touch[labels[:, :-1], labels[:, 1:]] = True
    touch[labels[:-1], labels[1:]] = True
    touch |= touch.T
    np.fill_diagonal(touch, False)
    return touch


if __name__ == "__main__":
    for one in np.frombuffer(sys.stdin.buffer.read(), np.uint8).reshape(-1, SIDE, SIDE):
        sys.stdout.buffer.write(segmented(one / 255).tobytes())
