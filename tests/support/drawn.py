"""Explanations of graphs with pictures, made up."""

from collections.abc import Sequence

import pytest

from conserva.datasets.molecules import parsed
from conserva.engine.ledger import Ledger
from conserva.results.explanation import Explanation

VIRTUAL = 0.777
LARGE = "O1CC[C@@H](NC(=O)[C@@H](Cc2cc3cc(ccc3nc2N)-c2ccccc2C)C)CC1(C)C"


def explanation(names: Sequence[str], picture: dict, **changes: object) -> Explanation:
    scores = [VIRTUAL, *(((i * 7) % 11 - 5) / 10 for i in range(len(names)))]
    settings = {
        "features": ("virtual node", *names),
        "scores": tuple(scores),
        "special": (True, *(False for _ in names)),
        "words": (None, *range(len(names))),
        "text": picture.get("smiles", "test 61"),
        "target": "active",
        "output": 1.5,
        "probability": 0.9,
        "ledger": Ledger.of(1.5, sum(scores), 0.0, -0.125),
        "method": "exact",
        "model": "graphormer",
        "picture": picture,
        **changes,
    }
    return Explanation(**settings)  # type: ignore[arg-type]


def molecule(smiles: str = "CC(=O)Nc1ccc(Cl)cc1C", **changes: object) -> Explanation:
    names = [atom.GetSymbol() for atom in parsed(smiles).GetAtoms()]
    return explanation(names, {"kind": "molecule", "smiles": smiles}, **changes)


def regions_with_corners() -> list[list[int]]:
    """Return blocks of 4 x 4, one of which lies within another, and two pixels of which meet at a corner alone."""
    regions = [[(y // 4) * 7 + x // 4 for x in range(28)] for y in range(28)]
    for y in range(9, 15):
        for x in range(9, 15):
            regions[y][x] = 16 if 10 <= y < 14 and 10 <= x < 14 else 17  # 17 encloses 16
    regions[3][3], regions[4][4] = 8, 0  # 0 and 8 each meet themselves at a corner
    names = {node: place for place, node in enumerate(sorted({node for row in regions for node in row}))}
    return [[names[node] for node in row] for row in regions]


def digit() -> list[list[int]]:
    """Return a ring."""
    return [
        [max(0, round(255 - 60 * abs(((y - 13) ** 2 + (x - 13) ** 2) ** 0.5 - 7))) for x in range(28)]
        for y in range(28)
    ]


def image(**changes: object) -> Explanation:
    regions = regions_with_corners()
    names = [f"superpixel {node}" for node in range(max(map(max, regions)) + 1)]
    return explanation(names, {"kind": "superpixels", "image": digit(), "regions": regions}, **changes)


BOTH = pytest.mark.parametrize("one", [molecule(), image()], ids=["molecule", "superpixels"])
