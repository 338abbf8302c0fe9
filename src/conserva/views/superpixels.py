"""Explanations of superpixel graphs: coloured superpixels, and the outline of the object in the image."""

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
from .vector_drawing import Drawing, Inset, Shape, rectangle, svg

SIZE, MARGIN = 300, 10
MIDDLE = 128
"""The grey level of the outline: half of the maximum brightness."""

_LEVELS = 16  # of grey: more could not be distinguished, and each is a separate path
_BORDER, _BORDER_WIDTH = "#9a9a9a", 0.06
_HALO_WIDTH, _OUTLINE_WIDTH = 0.44, 0.18

Point = tuple[float, float]
Vertex = TypeVar("Vertex", bound=Hashable)
Grid = Sequence[Sequence[int]]


def superpixels_svg(explanation: Explanation, scale: float | None = None, size: int = SIZE) -> Markup:
    """Return an image with coloured superpixels as SVG; the full colours are for scores of size `scale`, by default
    the largest.
    """
    explanation = displayed(explanation)
    return svg(superpixels_drawing(explanation, scale or scale_of([explanation]), size), label(explanation))


def superpixels_drawing(explanation: Explanation, scale: float | None, size: int = SIZE) -> Drawing:
    """Return the drawing of an image with coloured superpixels, or in grey if `scale` is None."""
    image, regions = _grids(explanation)
    shapes = list(_greys(image)) if scale is None else [*_regions(explanation, regions, scale), *_outline(image)]
    high, wide = len(image), len(image[0])
    zoom = (size - 2 * MARGIN) / max(high, wide)
    inside = Inset(MARGIN, MARGIN, zoom, Drawing(wide, high, tuple(shapes)))
    return Drawing(2 * MARGIN + zoom * wide, 2 * MARGIN + zoom * high, (inside,))


def _grids(explanation: Explanation) -> tuple[Grid, Grid]:
    """Return the image and its regions; raise `Error` unless their sizes agree and each region has one score."""
    image, regions = (in_picture(explanation, "superpixels", name) for name in ("image", "regions"))
    sizes = [[len(row) for row in grid] for grid in (image, regions)]
    if sizes[0] != sizes[1] or len(set(sizes[0])) != 1:
        raise Error(
            f"The picture of {explanation.text!r} has {len(image)} rows in its image and {len(regions)} in its "
            "regions: both must have the same number of rows, and all rows the same length."
        )
    nodes, scored = {node for row in regions for node in row}, set(node_scores(explanation))
    if nodes != scored:
        raise Error(
            f"The picture of {explanation.text!r} has {len(nodes)} superpixels, but the explanation has scores for "
            f"{len(scored)}, which do not match: use the picture of the graph that was explained."
        )
    return image, regions


def _regions(explanation: Explanation, regions: Grid, scale: float) -> Iterator[Shape]:
    scores = node_scores(explanation)
    for node, path in sorted(region_paths(regions).items()):
        fill = hexadecimal(shade(scores[node], scale))
        yield Shape(path, fill, _BORDER, _BORDER_WIDTH, node=node, title=tooltip(explanation, node))


def _greys(image: Grid) -> Iterator[Shape]:
    """Yield the image in dark on white, one path for each grey level."""
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
    """Yield the outline twice, a white line below a dark one, so that it is visible on every colour."""
    path = "".join("M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in loop) + "Z" for loop in contours(image, MIDDLE))
    if path:
        yield Shape(path, stroke="#ffffff", width=_HALO_WIDTH)
        yield Shape(path, stroke="#1a1a1a", width=_OUTLINE_WIDTH)


# From pixels to lines


def region_paths(regions: Grid) -> dict[int, str]:
    """Return the outline of each region along the edges of its pixels, as an SVG path."""
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
    """Return the contour lines of an image at a level, by marching squares; outside the image is 0."""
    wide = len(image[0])
    padded = [[0] * (wide + 2), *([0, *row, 0] for row in image), [0] * (wide + 2)]
    follows: dict[tuple[Point, Point], list[tuple[Point, Point]]] = {}
    for y in range(len(padded) - 1):
        for x in range(wide + 1):
            corners = [(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)]
            sides = list(zip(corners, corners[1:] + corners[:1], strict=True))
            inner = [padded[b][a] >= level for a, b in corners]
            leaving = [i for i in range(4) if inner[i] and not inner[(i + 1) % 4]]
            # A line joins the sides where a walk round the square leaves and re-enters the bright part.
            for i in leaving:
                back = next(k % 4 for k in range(i + 1, i + 4) if inner[(k + 1) % 4] and not inner[k % 4])
                follows[_unordered(sides[i])] = [_unordered(sides[back])]
    return [[_crossing(side, padded, level) for side in loop] for loop in _loops(follows)]


def _unordered(side: tuple[Point, Point]) -> tuple[Point, Point]:
    return min(side), max(side)


def _crossing(side: tuple[Point, Point], padded: Grid, level: float) -> Point:
    """Return the point between two pixel centres where the level is crossed, in coordinates without the padding."""
    (x, y), (to_x, to_y) = side
    low, high = padded[int(y)][int(x)], padded[int(to_y)][int(to_x)]
    share = (level - low) / (high - low)
    return x + share * (to_x - x) - 0.5, y + share * (to_y - y) - 0.5


def _loops(follows: Mapping[Vertex, list[Vertex]]) -> Iterator[list[Vertex]]:
    """Yield closed loops that use every edge once."""
    left = {vertex: list(ends) for vertex, ends in follows.items()}
    for first in left:
        while left[first]:
            loop, vertex = [first], left[first].pop()
            while vertex != first:
                loop.append(vertex)
                vertex = left[vertex].pop()
            yield loop


def _steps(loop: Sequence[Point]) -> str:
    """Return a loop along pixel edges as an SVG path through its corners."""
    corners = [
        here
        for before, here, after in zip([loop[-1], *loop[:-1]], loop, [*loop[1:], loop[0]], strict=True)
        if (before[0] == here[0]) != (here[0] == after[0])
    ]
    steps = [f"H{to[0]}" if to[1] == here[1] else f"V{to[1]}" for here, to in pairwise(corners)]
    return f"M{corners[0][0]} {corners[0][1]}{''.join(steps)}Z"
