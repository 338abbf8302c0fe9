"""Explanations of images: every superpixel in the colour of its score, and the outline of what the image shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from markupsafe import Markup

from .._util.text import displayed
from ..errors import Error
from ..results.explanation import Explanation
from .colours import hexadecimal, scale_of, shade
from .picture_nodes import in_picture, label, node_scores, tooltip
from .vector_drawing import Drawing, Placed, Shape, rectangle, svg

SIZE, MARGIN = 300, 10
MIDDLE = 128
"""The outline runs where the image is half as bright as can be."""

_LEVELS = 16  # of grey: more are not told apart, and each is a path of its own
_BORDER, _BORDER_WIDTH = "#9a9a9a", 0.06
_HALO_WIDTH, _OUTLINE_WIDTH = 0.44, 0.18

Point = tuple[float, float]
Place = TypeVar("Place", bound=Hashable)
Grid = Sequence[Sequence[int]]


def superpixels_svg(explanation: Explanation, scale: float | None = None, size: int = SIZE) -> Markup:
    """Return an image as SVG, each superpixel on its colour; the largest score is a full one if no scale is given."""
    explanation = displayed(explanation)
    return svg(superpixels_drawing(explanation, scale or scale_of([explanation]), size), label(explanation))


def superpixels_drawing(explanation: Explanation, scale: float | None, size: int = SIZE) -> Drawing:
    """Return an image with the colours of the scores, or in plain grey if there is no scale."""
    image, regions = _grids(explanation)
    shapes = list(_greys(image)) if scale is None else [*_regions(explanation, regions, scale), *_outline(image)]
    high, wide = len(image), len(image[0])
    zoom = (size - 2 * MARGIN) / max(high, wide)
    inside = Placed(MARGIN, MARGIN, zoom, Drawing(wide, high, tuple(shapes)))
    return Drawing(2 * MARGIN + zoom * wide, 2 * MARGIN + zoom * high, (inside,))


def _grids(explanation: Explanation) -> tuple[Grid, Grid]:
    """Return the image and its regions, which must be as large, and the nodes that have scores."""
    image, regions = (in_picture(explanation, "superpixels", name) for name in ("image", "regions"))
    sizes = [[len(row) for row in grid] for grid in (image, regions)]
    if sizes[0] != sizes[1] or len(set(sizes[0])) != 1:
        raise Error(
            f"The picture of {explanation.text!r} has {len(image)} rows in its image and {len(regions)} in its "
            "regions: give as many pixels in each row of both."
        )
    nodes, scored = {node for row in regions for node in row}, set(node_scores(explanation))
    if nodes != scored:
        raise Error(
            f"The picture of {explanation.text!r} has {len(nodes)} superpixels, the explanation scores for "
            f"{len(scored)}, and they are not the same: explain the graph whose picture it is."
        )
    return image, regions


def _regions(explanation: Explanation, regions: Grid, scale: float) -> Iterator[Shape]:
    scores = node_scores(explanation)
    for node, path in sorted(region_paths(regions).items()):
        fill = hexadecimal(shade(scores[node], scale))
        yield Shape(path, fill, _BORDER, _BORDER_WIDTH, node=node, title=tooltip(explanation, node))


def _greys(image: Grid) -> Iterator[Shape]:
    """Return the image in dark on white, with one path for each grey."""
    runs = defaultdict(list)
    for y, row in enumerate(image):
        start = 0
        for x in range(1, len(row) + 1):
            grey = round(row[start] / 255 * _LEVELS)
            if x == len(row) or round(row[x] / 255 * _LEVELS) != grey:
                runs[grey].append(rectangle(start, y, x - start, 1))
                start = x
    runs.pop(0, None)
    for grey, paths in sorted(runs.items()):
        level = round(255 - 225 * grey / _LEVELS)
        yield Shape("".join(paths), hexadecimal((level, level, level)))


def _outline(image: Grid) -> Iterator[Shape]:
    """Return the outline twice: a light one beneath the dark one, so that it is seen on every colour."""
    path = "".join("M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in loop) + "Z" for loop in contours(image, MIDDLE))
    if path:
        yield Shape(path, stroke="#ffffff", width=_HALO_WIDTH)
        yield Shape(path, stroke="#1a1a1a", width=_OUTLINE_WIDTH)


# From pixels to lines


def region_paths(regions: Grid) -> dict[int, str]:
    """Return the outline of each region along the edges of its pixels, as one path."""
    edges: dict[int, dict[Point, list[Point]]] = defaultdict(lambda: defaultdict(list))
    high, wide = len(regions), len(regions[0])
    for y in range(high):
        for x in range(wide):
            node = regions[y][x]
            for dy, dx, start, end in (
                (-1, 0, (x, y), (x + 1, y)),
                (0, 1, (x + 1, y), (x + 1, y + 1)),
                (1, 0, (x + 1, y + 1), (x, y + 1)),
                (0, -1, (x, y + 1), (x, y)),
            ):
                inside = 0 <= y + dy < high and 0 <= x + dx < wide
                if not inside or regions[y + dy][x + dx] != node:
                    edges[node][start].append(end)
    return {node: "".join(_steps(loop) for loop in _loops(its)) for node, its in edges.items()}


def contours(image: Grid, level: float) -> list[list[Point]]:
    """Return the lines on which an image has a level, by marching squares, beyond its border 0."""
    wide = len(image[0])
    padded = [[0] * (wide + 2), *([0, *row, 0] for row in image), [0] * (wide + 2)]
    follows: dict[tuple[Point, Point], list[tuple[Point, Point]]] = {}
    for y in range(len(padded) - 1):
        for x in range(wide + 1):
            corners = [(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)]
            sides = list(zip(corners, corners[1:] + corners[:1], strict=True))
            inner = [padded[b][a] >= level for a, b in corners]
            leaving = [i for i in range(4) if inner[i] and not inner[(i + 1) % 4]]
            for i in leaving:  # the line goes from where a walk round the square leaves what is bright to its return
                back = next(k % 4 for k in range(i + 1, i + 4) if inner[(k + 1) % 4] and not inner[k % 4])
                follows[_unordered(sides[i])] = [_unordered(sides[back])]
    return [[_crossing(side, padded, level) for side in loop] for loop in _loops(follows)]


def _unordered(side: tuple[Point, Point]) -> tuple[Point, Point]:
    return min(side), max(side)


def _crossing(side: tuple[Point, Point], padded: Grid, level: float) -> Point:
    """Return where a line between two centres of pixels has the level, on the image without its border."""
    (x, y), (to_x, to_y) = side
    low, high = padded[int(y)][int(x)], padded[int(to_y)][int(to_x)]
    share = (level - low) / (high - low)
    return x + share * (to_x - x) - 0.5, y + share * (to_y - y) - 0.5


def _loops(follows: Mapping[Place, list[Place]]) -> Iterator[list[Place]]:
    """Return closed walks that use every step once."""
    left = {place: list(ends) for place, ends in follows.items()}
    for first in left:
        while left[first]:
            loop, place = [first], left[first].pop()
            while place != first:
                loop.append(place)
                place = left[place].pop()
            yield loop


def _steps(loop: Sequence[Point]) -> str:
    """Return a walk along edges with its corners alone."""
    corners = [
        here
        for before, here, after in zip([loop[-1], *loop[:-1]], loop, [*loop[1:], loop[0]], strict=True)
        if (before[0] == here[0]) != (here[0] == after[0])
    ]
    steps = [f"H{to[0]}" if to[1] == here[1] else f"V{to[1]}" for here, to in pairwise(corners)]
    return f"M{corners[0][0]} {corners[0][1]}{''.join(steps)}Z"
