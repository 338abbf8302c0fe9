"""Graphs and images in the terminal: SMILES with coloured atoms, pixels as half blocks, a list of the top scores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text as Line

from ..results.explanation import Explanation
from .colours import RGB, hexadecimal, shade, terminal_style
from .patch_overlay import blended, decoded, grey, grid_of
from .picture_nodes import counted, in_picture, kind_of, node_scores, strongest, virtual_node
from .terminal_text import coloured, has_shades, has_unicode
from .wording import number

if TYPE_CHECKING:
    from PIL.Image import Image

FEW, LISTED = 3, 10
"""Number of nodes listed in a terminal with at least 256 colours, and in one with fewer."""

ACROSS = 48
"""Maximum width of an image in character cells; every patch is a square of whole pixels."""

WIDE = 80
"""Terminals narrower than this show one score per line instead of a row of scores."""

_ATOM = re.compile(r"\[[^\]]*\]|Br|Cl|[BCNOPSFIbcnops*]")
_GAP = "   "


def picture(explanation: Explanation, scale: float, console: Console) -> list[RenderableType]:
    """Return a graph or an image for the terminal, its largest scores, and the score of its virtual node."""
    shown: RenderableType = Line(explanation.text)
    top = strongest(explanation, FEW if has_shades(console) else LISTED)
    if has_shades(console) and kind_of(explanation) == "molecule":
        shown = molecule(explanation, scale)
    elif not has_shades(console) or not has_unicode(console):
        pass  # pixels are half blocks in two colours
    elif kind_of(explanation) == "image":
        shown = patches(explanation, scale, console.width)
    else:
        shown = superpixels(explanation, scale, console.width)
    table = Table.grid(padding=(0, 2))
    for node, score in [*top, *virtual_node(explanation)]:
        table.add_row(Line(node), scored("", score, scale, console))
    return [shown, Line(f"{counted(explanation)}, the largest scores:", style="dim"), table]


def scored(name: str, score: float, scale: float, console: Console) -> Line:
    """Return a name and its score, coloured by the score."""
    return coloured(f"{name} {number(score)}".strip(), score, scale, console)


def summary(explanation: Explanation, scale: float, console: Console) -> Line:
    """Return the nodes with the largest scores, by their short names."""
    top = [scored(name, score, scale, console) for name, score in strongest(explanation, FEW, short=True)]
    return Line("  " if console.width >= WIDE else "\n").join(top)


def molecule(explanation: Explanation, scale: float) -> Line:
    """Return the SMILES with coloured atoms, or a list of atoms if its symbols do not match the atoms one to one."""
    scores = node_scores(explanation)
    smiles = in_picture(explanation, "molecule", "smiles").strip()
    line, end = Line(), 0
    matches = list(_ATOM.finditer(smiles))
    if len(matches) != len(scores):
        matches, smiles = [], ""
        line = Line(" ").join(Line(name, style=terminal_style(score, scale)) for name, score in _atoms(explanation))
    for atom, match in enumerate(matches):
        line.append(smiles[end : match.start()]).append(match.group(), style=terminal_style(scores[atom], scale))
        end = match.end()
    return line.append(smiles[end:])


def _atoms(explanation: Explanation) -> Iterator[tuple[str, float]]:
    shown = explanation.visible()
    return zip(shown.features, shown.scores, strict=True)


def superpixels(explanation: Explanation, scale: float, width: int) -> RenderableType:
    """Return the image in grey and its coloured superpixels, side by side if the terminal is wide enough."""
    image, regions = (in_picture(explanation, "superpixels", name) for name in ("image", "regions"))
    shades = {node: shade(score, scale) for node, score in node_scores(explanation).items()}
    grey = half_blocks([[(255 - value,) * 3 for value in row] for row in image])
    coloured = half_blocks([[shades[node] for node in row] for row in regions])
    return _beside(grey, coloured, len(image), width >= 2 * len(image[0]) + len(_GAP))


def patches(explanation: Explanation, scale: float, width: int) -> RenderableType:
    """Return the image and the image with coloured patches, side by side if the terminal is wide enough."""
    (rows, columns), scores, image = grid_of(explanation), node_scores(explanation), decoded(explanation)
    each = max(1, min(ACROSS, width) // columns)  # pixels per patch, a whole number: patches end at cell borders
    size = (columns * each, rows * each)
    plain, light = (_pixels(kind.resize(size)) for kind in (image, grey(image)))
    coloured = [
        [blended(pixel, scores[y // each * columns + x // each], scale) for x, pixel in enumerate(row)]
        for y, row in enumerate(light)
    ]
    return _beside(half_blocks(plain), half_blocks(coloured), size[1], width >= 2 * size[0] + len(_GAP))


def _pixels(image: Image) -> list[list[RGB]]:
    return [[(red, green, blue) for red, green, blue in row] for row in np.asarray(image.convert("RGB")).tolist()]


def _beside(left: Line, right: Line, rows: int, has_room: bool) -> RenderableType:
    """Return two images of `rows` pixel rows each, side by side or one below the other."""
    table = Table.grid(padding=0)
    if has_room:
        table.add_row(left, Line("\n".join([_GAP] * ((rows + 1) // 2))), right)
        return table
    for part in (left, "", right):
        table.add_row(part)
    return table


def half_blocks(pixels: Sequence[Sequence[RGB]]) -> Line:
    """Return pixels as half blocks, two pixel rows per line: the upper one as foreground, the lower as background."""
    block = Line(no_wrap=True, overflow="crop")
    for top in range(0, len(pixels), 2):
        if top:
            block.append("\n")
        below: Sequence[RGB | None] = pixels[top + 1] if top + 1 < len(pixels) else [None] * len(pixels[top])
        for upper, lower in zip(pixels[top], below, strict=True):
            block.append("▀", style=hexadecimal(upper) + (f" on {hexadecimal(lower)}" if lower else ""))
    return block
