"""Vector drawings, written as SVG or drawn with matplotlib."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from markupsafe import Markup

from .svg import element, markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path

INK, NOTE = "#1a1a1a", "#595959"
ROUND = 10
"""The corner radius of the white background, which keeps a drawing readable on a dark page."""

STRIP, NARROWEST = 24, 180
"""On pages: the height of the strip below a drawing, in which the title of a node is shown, and its minimum width."""

UNITS_PER_INCH = 96
_KAPPA = 0.5523  # length of the control handles with which four cubic Bézier curves approximate a unit circle
_TOKEN = re.compile(r"[A-Za-z]|-?[0-9.]+(?:e-?[0-9]+)?")
Point = tuple[float, float]
_ARGUMENTS = {"M": 2, "L": 2, "H": 1, "V": 1, "Q": 4, "C": 6, "Z": 0}


@dataclass(frozen=True)
class Shape:
    """An SVG path of the absolute commands M, L, H, V, Q, C and Z; `title` is the tooltip of a node."""

    path: str
    fill: str = "none"
    stroke: str = "none"
    width: float = 0.0
    opacity: float = 1.0
    node: int | None = None
    title: str = ""


@dataclass(frozen=True)
class TextLine:
    """One line of text; `x` is its start, middle or end (see `anchor`), `y` its baseline."""

    x: float
    y: float
    text: str
    size: float = 12.0
    colour: str = INK
    anchor: str = "start"
    bold: bool = False


@dataclass(frozen=True)
class Raster:
    """A base64-encoded PNG, drawn at the upper left corner of the drawing."""

    png: str
    width: float
    height: float


@dataclass(frozen=True)
class Inset:
    """A drawing inside another one, scaled by `zoom` and moved to (x, y)."""

    x: float
    y: float
    zoom: float
    drawing: Drawing


@dataclass(frozen=True)
class Drawing:
    """A drawing; later parts cover earlier ones."""

    width: float
    height: float
    parts: tuple[Shape | TextLine | Raster | Inset, ...]


def circle(x: float, y: float, radius: float) -> str:
    """Return the path of a circle."""
    r, k = radius, radius * _KAPPA
    curves = (
        (x + r, y + k, x + k, y + r, x, y + r),
        (x - k, y + r, x - r, y + k, x - r, y),
        (x - r, y - k, x - k, y - r, x, y - r),
        (x + k, y - r, x + r, y - k, x + r, y),
    )
    return f"M{_short(x + r)} {_short(y)}" + "".join("C" + " ".join(map(_short, curve)) for curve in curves) + "Z"


def rectangle(x: float, y: float, width: float, height: float) -> str:
    """Return the path of a rectangle."""
    return f"M{_short(x)} {_short(y)}H{_short(x + width)}V{_short(y + height)}H{_short(x)}Z"


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def extent(shapes: Iterable[Shape]) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of shapes, including line widths and control points of curves."""
    across: list[float] = []
    down: list[float] = []
    for shape in shapes:
        for x, y in (point for _, points in commands(shape.path) for point in points):
            across += (x - shape.width / 2, x + shape.width / 2)
            down += (y - shape.width / 2, y + shape.width / 2)
    return min(across), min(down), max(across), max(down)


# As SVG


def svg(drawing: Drawing, label: str, *, in_page: bool = False) -> Markup:
    """Return a drawing as an SVG element on a white background.

    In HTML pages (`in_page`) it needs no namespace, and the title of the node that is pointed at or tapped is shown
    in a strip below the drawing: touch screens have no tooltips.
    """
    width, height = drawing.width, drawing.height
    if in_page:
        width, height = max(width, NARROWEST), height + STRIP
    size = {"width": _short(width), "height": _short(height)}
    attributes = {
        **({} if in_page else {"xmlns": "http://www.w3.org/2000/svg"}),
        "viewBox": f"0 0 {size['width']} {size['height']}",
        **size,
        **{"role": "img", "aria-label": label, "font-family": "system-ui,sans-serif"},
    }
    background = element("rect", {**size, "rx": str(ROUND), "fill": "#fff"})
    strip = _Strip(width / 2, height - STRIP / 3) if in_page else None
    return markup(element("svg", attributes, background, *_elements(drawing, strip)))


@dataclass(frozen=True)
class _Strip:
    """Where the title of a node is written, in the coordinates of the drawing that the node is in."""

    x: float
    y: float
    zoom: float = 1.0

    def inside(self, inset: Inset) -> _Strip:
        return _Strip((self.x - inset.x) / inset.zoom, (self.y - inset.y) / inset.zoom, self.zoom / inset.zoom)


def _elements(drawing: Drawing, strip: _Strip | None) -> Iterator[Element]:
    for part in drawing.parts:
        yield _element(part, strip)
        if strip is not None and isinstance(part, Shape) and part.node is not None:
            line = TextLine(strip.x, strip.y, part.title, 13 * strip.zoom, anchor="middle", bold=True)
            title = _element(line, None)
            title.set("class", "title")  # shown by the style sheet while the element before it is pointed at or tapped
            yield title


def _element(part: Shape | TextLine | Raster | Inset, strip: _Strip | None) -> Element:
    if isinstance(part, Inset):
        zoom = "" if part.zoom == 1 else f" scale({part.zoom:g})"
        attributes = {"transform": f"translate({_short(part.x)} {_short(part.y)}){zoom}"}
        return element("g", attributes, *_elements(part.drawing, strip and strip.inside(part)))
    if isinstance(part, TextLine):
        attributes = {"x": _short(part.x), "y": _short(part.y), "font-size": f"{part.size:g}"}
        bold = {"font-weight": "bold"} if part.bold else {}
        return element("text", {**attributes, "fill": part.colour, "text-anchor": part.anchor, **bold}, text=part.text)
    if isinstance(part, Raster):
        size = {"width": _short(part.width), "height": _short(part.height), "preserveAspectRatio": "none"}
        return element("image", {"href": f"data:image/png;base64,{part.png}", **size})
    return _path(part, focusable=strip is not None)


def _path(shape: Shape, focusable: bool) -> Element:
    drawn = {"d": shape.path, "fill": shape.fill}
    if shape.stroke != "none":
        drawn |= {"stroke": shape.stroke, "stroke-width": f"{shape.width:g}", "stroke-linejoin": "round"}
    if shape.opacity != 1:
        drawn["opacity"] = f"{shape.opacity:g}"
    if shape.node is None:
        return element("path", {**drawn, "pointer-events": "none"})  # only nodes react to the mouse
    # A tap focuses it. With the keyboard one would have to tab through hundreds: the page lists all scores.
    focus = {"tabindex": "-1"} if focusable else {}
    path = element("path", {**drawn, **focus, "data-node": str(shape.node)})
    path.append(element("title", {}, text=shape.title))
    return path


# With matplotlib


def paint(drawing: Drawing, axes: Axes, x: float = 0.0, y: float = 0.0, zoom: float = 1.0) -> None:
    """Draw on matplotlib axes whose data coordinates are those of the drawing, with y pointing down."""
    from matplotlib.patches import PathPatch

    points = 72 / UNITS_PER_INCH
    for part in drawing.parts:
        if isinstance(part, Inset):
            paint(part.drawing, axes, x + zoom * part.x, y + zoom * part.y, zoom * part.zoom)
        elif isinstance(part, TextLine):
            axes.text(
                x + zoom * part.x,
                y + zoom * part.y,
                part.text,
                fontsize=part.size * zoom * points,
                color=part.colour,
                ha={"start": "left", "middle": "center", "end": "right"}[part.anchor],
                va="baseline",
                weight="bold" if part.bold else "normal",
            )
        elif isinstance(part, Raster):
            right, bottom = x + zoom * part.width, y + zoom * part.height
            axes.imshow(_pixels(part.png), extent=(x, right, bottom, y), aspect="auto", interpolation="antialiased")
        else:
            patch = PathPatch(
                _outline(part.path, x, y, zoom),
                facecolor=part.fill,
                edgecolor=part.stroke,
                lw=part.width * zoom * points,
                alpha=part.opacity,
                joinstyle="round",
                capstyle="butt",
            )
            axes.add_patch(patch)


def _pixels(png: str) -> Any:
    """Return a PNG as an RGB image; matplotlib would draw a greyscale one as a heat map."""
    from PIL import Image  # which matplotlib itself needs

    return Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")


def _outline(path: str, x: float, y: float, zoom: float) -> Path:
    """Return an SVG path as a matplotlib path."""
    from matplotlib.path import Path

    kinds = {"M": Path.MOVETO, "L": Path.LINETO, "Q": Path.CURVE3, "C": Path.CURVE4, "Z": Path.CLOSEPOLY}
    steps = [(kinds[command], point) for command, points in commands(path) for point in points]
    return Path([(x + zoom * across, y + zoom * down) for _, (across, down) in steps], [kind for kind, _ in steps])


def commands(path: str) -> Iterator[tuple[str, list[Point]]]:
    """Yield each command of a path with its points; H and V become L, and Z has the point before it."""
    tokens = _TOKEN.findall(path)
    i, last = 0, (0.0, 0.0)
    while i < len(tokens):
        command, count = tokens[i], _ARGUMENTS[tokens[i]]
        numbers = [float(token) for token in tokens[i + 1 : i + 1 + count]]
        if command in "HV":  # the other coordinate does not change
            numbers = [numbers[0], last[1]] if command == "H" else [last[0], numbers[0]]
        points = list(zip(numbers[::2], numbers[1::2], strict=True)) or [last]
        yield "L" if command in "HV" else command, points
        i, last = i + 1 + count, points[-1]
