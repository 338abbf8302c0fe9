"""Graphs and images in the terminal: atoms within their SMILES, pixels as half-blocks, the largest scores as a list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text as Line

from ..results.explanation import Explanation
from .colours import RGB, hexadecimal, ink, shade
from .patch_overlay import decoded, grey, grid_of, seen_through
from .picture_nodes import counted, in_picture, kind_of, node_scores, strongest, virtual_node
from .wording import number

if TYPE_CHECKING:
    from PIL.Image import Image

FEW, LISTED = 3, 10
"""How many nodes are listed where a terminal has shades, and where it has none."""

ACROSS = 48
"""How many blocks across an image is drawn, or fewer: its patches are squares of them."""

WIDE = 80
"""Narrower terminals have one score a line, where wide ones have a row."""

_ATOM = re.compile(r"\[[^\]]*\]|Br|Cl|[BCNOPSFIbcnops*]")
_GAP = "   "


def has_shades(console: Console) -> bool:
    """Say whether a terminal can show a score as a colour."""
    return console.color_system in ("truecolor", "256")


def sign(score: float) -> str:
    """Return the colour of a score where there are no shades."""
    return "red" if score > 0 else "blue" if score < 0 else ""


def picture(one: Explanation, scale: float, console: Console) -> list[RenderableType]:
    """Return a graph as a terminal can show it, its largest scores, and its virtual node in a line of its own."""
    shown: RenderableType = Line(one.text)
    top = strongest(one, FEW if has_shades(console) else LISTED)
    if has_shades(console) and kind_of(one) == "molecule":
        shown = molecule(one, scale)
    elif has_shades(console) and kind_of(one) == "image":
        shown = patches(one, scale, console.width)
    elif has_shades(console):
        shown = superpixels(one, scale, console.width)
    table = Table.grid(padding=(0, 2))
    for node, score in [*top, *virtual_node(one)]:
        table.add_row(Line(node), scored("", score, scale, console))
    return [shown, Line(f"{counted(one)}, the largest scores:", style="dim"), table]


def scored(name: str, score: float, scale: float, console: Console) -> Line:
    """Return a name with its score, on its colour where a terminal has shades."""
    said = f"{name} {number(score)}".strip()
    return _on_colour(said, score, scale) if has_shades(console) else Line(said, style=sign(score))


def summary(one: Explanation, scale: float, console: Console) -> Line:
    """Return the largest scores in a row, by the short names of the nodes."""
    top = [scored(name, score, scale, console) for name, score in strongest(one, FEW, short=True)]
    return Line("  " if console.width >= WIDE else "\n").join(top)


def molecule(one: Explanation, scale: float) -> Line:
    """Return the SMILES with its atoms on their colours; the atoms alone where it cannot be told which is which."""
    scores = node_scores(one)
    smiles = in_picture(one, "molecule", "smiles").strip()
    line, end = Line(), 0
    found = list(_ATOM.finditer(smiles))
    if len(found) != len(scores):
        found, smiles = [], ""
        line = Line(" ").join(_on_colour(name, score, scale) for name, score in _atoms(one))
    for atom, match in enumerate(found):
        line.append(smiles[end : match.start()]).append(_on_colour(match.group(), scores[atom], scale))
        end = match.end()
    return line.append(smiles[end:])


def _atoms(one: Explanation) -> Iterator[tuple[str, float]]:
    shown = one.visible()
    return zip(shown.features, shown.scores, strict=True)


def _on_colour(text: str, score: float, scale: float) -> Line:
    background = shade(score, scale)
    return Line(text, style=f"{hexadecimal(ink(background))} on {hexadecimal(background)}")


def superpixels(one: Explanation, scale: float, width: int) -> RenderableType:
    """Return the image in grey, and beside it the colours of its superpixels: below it where there is no room."""
    image, regions = (in_picture(one, "superpixels", name) for name in ("image", "regions"))
    shades = {node: shade(score, scale) for node, score in node_scores(one).items()}
    grey = half_blocks([[(255 - value,) * 3 for value in row] for row in image])
    coloured = half_blocks([[shades[node] for node in row] for row in regions])
    return _beside(grey, coloured, len(image), width >= 2 * len(image[0]) + len(_GAP))


def patches(one: Explanation, scale: float, width: int) -> RenderableType:
    """Return the image, and beside it the same with the colours of its patches: below it where there is no room."""
    (rows, columns), scores, image = grid_of(one), node_scores(one), decoded(one)
    each = max(1, min(ACROSS, width) // columns)  # pixels of the terminal, so that patches end where blocks do
    size = (columns * each, rows * each)
    plain, light = (_pixels(kind.resize(size)) for kind in (image, grey(image)))
    coloured = [
        [seen_through(pixel, scores[y // each * columns + x // each], scale) for x, pixel in enumerate(row)]
        for y, row in enumerate(light)
    ]
    return _beside(half_blocks(plain), half_blocks(coloured), size[1], width >= 2 * size[0] + len(_GAP))


def _pixels(image: Image) -> list[list[RGB]]:
    return [[(red, green, blue) for red, green, blue in row] for row in np.asarray(image.convert("RGB")).tolist()]


def _beside(left: Line, right: Line, rows: int, has_room: bool) -> RenderableType:
    """Return two blocks of so many rows of pixels side by side, or one below the other."""
    table = Table.grid(padding=0)
    if has_room:
        table.add_row(left, Line("\n".join([_GAP] * ((rows + 1) // 2))), right)
        return table
    for part in (left, "", right):
        table.add_row(part)
    return table


def half_blocks(pixels: Sequence[Sequence[RGB]]) -> Line:
    """Return two rows of pixels in each line: the upper half of a block, and its ground."""
    block = Line(no_wrap=True, overflow="crop")
    for top in range(0, len(pixels), 2):
        if top:
            block.append("\n")
        below: Sequence[RGB | None] = pixels[top + 1] if top + 1 < len(pixels) else [None] * len(pixels[top])
        for upper, lower in zip(pixels[top], below, strict=True):
            block.append("▀", style=hexadecimal(upper) + (f" on {hexadecimal(lower)}" if lower else ""))
    return block
