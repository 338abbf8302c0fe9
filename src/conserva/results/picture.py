"""Validation of `Explanation.picture` when a result is loaded: it can be drawn, and matches the features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

from .._util.pictures import decoded_png
from ..errors import Error
from .schema import Count, Within, repeated, unknown, unlike

if TYPE_CHECKING:
    from .explanation import Explanation

_Byte = Annotated[int, Within(0, 255)]
_Positive = Annotated[int, Within(1)]

PARTS: Mapping[str, Mapping[str, Any]] = {
    "molecule": {"smiles": str},
    "superpixels": {"image": tuple[tuple[_Byte, ...], ...], "regions": tuple[tuple[Count, ...], ...]},
    "image": {"image": str, "grid": tuple[_Positive, _Positive]},
}
"""The required fields of each kind of picture, with their types."""


def picture_flaws(explanation: Explanation) -> Iterator[str]:
    """Yield the flaws of an explanation's picture, if it has one."""
    picture = explanation.picture
    if picture is None:
        return
    kind = picture.get("kind")
    wrong = list(unknown("picture.kind", kind, list(PARTS))) or list(unlike("picture", picture, PARTS[str(kind)]))
    if wrong:
        yield wrong[0]
        return
    shown = explanation.visible()
    scored = [node for node in shown.words if node is not None]
    yield from repeated("words", scored)
    fits = {"molecule": _molecule, "superpixels": _superpixels, "image": _image}[str(kind)]
    yield from fits(explanation, picture, set(scored))


def _molecule(explanation: Explanation, picture: Mapping[str, Any], scored: set[int]) -> Iterator[str]:
    if find_spec("rdkit") is None:  # without it the molecule cannot be drawn, but the scores can be read
        return
    from ..datasets.molecules import parsed

    if not picture["smiles"].isascii():
        yield "picture.smiles is not ASCII, as every SMILES is"
        return
    try:
        atoms = parsed(picture["smiles"]).GetNumAtoms()
    except Error as error:
        yield f"picture.smiles cannot be read: {error}"
        return
    if scored != set(range(atoms)):
        yield f"picture.smiles has {atoms} atoms, which do not match the {len(scored)} in words"


def _superpixels(explanation: Explanation, picture: Mapping[str, Any], scored: set[int]) -> Iterator[str]:
    image, regions = picture["image"], picture["regions"]
    wide = {len(row) for row in (*image, *regions)}
    if len(image) != len(regions) or len(wide) != 1 or 0 in wide:
        yield "picture.image and picture.regions differ in shape, or have rows of different length"
        return
    nodes = {node for row in regions for node in row}
    if nodes != scored:
        yield f"picture.regions has {len(nodes)} regions, which do not match the {len(scored)} in words"


def _image(explanation: Explanation, picture: Mapping[str, Any], scored: set[int]) -> Iterator[str]:
    rows, columns = picture["grid"]
    if rows * columns != len(scored) or scored != set(range(len(scored))):
        yield f"picture.grid has {rows} x {columns} patches, which do not match the {len(scored)} in words"
        return
    if find_spec("PIL") is None:
        return
    try:
        decoded_png(picture["image"], f"The picture of {explanation.text!r}")
    except Error as error:
        yield f"picture.image cannot be read: {error}"
