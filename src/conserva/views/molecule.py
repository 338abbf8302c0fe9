"""Explanations of molecules: a structural formula with a coloured disc behind each atom."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from statistics import median
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from .._util.text import displayed
from ..datasets.molecules import parsed
from ..errors import Error
from ..results.explanation import Explanation
from .colours import hexadecimal, scale_of, shade
from .picture_nodes import in_picture, label, node_scores, tooltip
from .vector_drawing import Drawing, Inset, Shape, circle, extent, svg

SIZE, MARGIN = (420, 300), 10
SCALE = 26
"""Drawing units per angstrom; large molecules are scaled down to fit, small ones are not enlarged."""

_RADIUS = 0.40  # relative to the length of a bond: discs of neighbours nearly touch
_BORDER, _BORDER_WIDTH, _LINE_WIDTH, _HALO_WIDTH = "#c4c4c4", 0.7, 1.6, 2.6


def molecule_svg(explanation: Explanation, scale: float | None = None, size: tuple[int, int] = SIZE) -> Markup:
    """Return a molecule with coloured atoms as SVG; the full colours are for scores of size `scale`, by default the
    largest.
    """
    explanation = displayed(explanation)
    return svg(molecule_drawing(explanation, scale or scale_of([explanation]), size), label(explanation))


def molecule_drawing(explanation: Explanation, scale: float | None, size: tuple[int, int] = SIZE) -> Drawing:
    """Return the drawing of a molecule with coloured atoms, or without colours if `scale` is None."""
    molecule = parsed(in_picture(explanation, "molecule", "smiles"))
    count, scores = molecule.GetNumAtoms(), node_scores(explanation)
    if set(scores) != set(range(count)):
        raise Error(
            f"The molecule {explanation.text!r} has {count} atoms, but the explanation has scores for {len(scores)}, "
            "which do not match: use the SMILES of the graph that was explained."
        )
    lines, letters, positions, length = _skeleton(molecule, size)
    discs: list[Shape] = []
    if scale is not None:
        for atom, (x, y) in enumerate(positions):
            fill = hexadecimal(shade(scores[atom], scale))
            path = circle(x, y, _RADIUS * length)
            discs.append(Shape(path, fill, _BORDER, _BORDER_WIDTH, node=atom, title=tooltip(explanation, atom)))
    halos = [replace(letter, stroke="#ffffff", fill="#ffffff", width=_HALO_WIDTH) for letter in letters]
    # Space for discs is kept in uncoloured drawings too: a molecule has the same size in all pictures of a row.
    room = [Shape(circle(x, y, _RADIUS * length), width=_BORDER_WIDTH) for x, y in positions]
    left, top, right, bottom = extent([*room, *halos, *lines])
    inside = Drawing(*size, (*discs, *(halos if discs else []), *lines, *letters))
    width, height = right - left + 2 * MARGIN, bottom - top + 2 * MARGIN
    return Drawing(width, height, (Inset(MARGIN - left, MARGIN - top, 1, inside),))


def _skeleton(
    molecule: Any, size: tuple[int, int]
) -> tuple[list[Shape], list[Shape], list[tuple[float, float]], float]:
    """Return RDKit's bonds and letters, the positions of the atoms, and the median length of a bond."""
    try:
        from rdkit.Chem import rdDepictor
        from rdkit.Chem.Draw import rdMolDraw2D
    except ImportError as error:
        raise Error(
            f"RDKit cannot draw on this system ({error}): install the system libraries it needs (on Debian libxrender1 "
            "and libxext6), or save the explanation as JSON and draw it on another machine."
        ) from None

    # RDKit would add hydrogens at stereo centres, which are not atoms of the explanation.
    prepared: Any = rdMolDraw2D.PrepareMolForDrawing(molecule, addChiralHs=False)
    rdDepictor.StraightenDepiction(prepared)
    drawer: Any = rdMolDraw2D.MolDraw2DSVG(*size)
    options = drawer.drawOptions()
    options.prepareMolsBeforeDrawing = False
    options.useBWAtomPalette()  # colours are for scores only
    options.fixedBondLength = SCALE
    options.bondLineWidth = _LINE_WIDTH
    options.padding = 0.04
    drawer.DrawMolecule(prepared)
    drawer.FinishDrawing()
    points = [drawer.GetDrawCoords(atom) for atom in range(molecule.GetNumAtoms())]
    positions = [(point.x, point.y) for point in points]
    bonds = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    lengths = [(points[first] - points[second]).Length() for first, second in bonds]
    shapes = [_shape(element) for element in ElementTree.fromstring(drawer.GetDrawingText()) if "d" in element.attrib]
    lines = list(_joined(shape for shape in shapes if shape.stroke != "none"))
    letters = list(_joined(shape for shape in shapes if shape.stroke == "none"))
    return lines, letters, positions, median(lengths) if lengths else 1.5 * SCALE


def _shape(element: ElementTree.Element) -> Shape:
    style = dict(re.findall(r"([a-z-]+):([^;]+)", element.get("style", "")))
    fill = element.get("fill") or style.get("fill", "none")
    width = float(style.get("stroke-width", "0px").removesuffix("px"))
    path = " ".join(element.attrib["d"].replace(",", " ").split())
    return Shape(re.sub(r" ?([MLQCZ]) ?", r"\1", path), fill.lower(), style.get("stroke", "none").lower(), width)


def _joined(shapes: Iterable[Shape]) -> Iterator[Shape]:
    """Merge consecutive paths with the same style: RDKit writes a separate path for every half of a bond."""
    for look, group in groupby(shapes, key=lambda shape: replace(shape, path="")):
        yield replace(look, path="".join(shape.path for shape in group))
