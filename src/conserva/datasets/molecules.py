"""Molecules as graphs of atoms: any SMILES, and BACE, the molecules of Ali et al. (ICML 2022).

Atoms have the nine features of the Open Graph Benchmark, and bonds its three. A hydrogen is a node where the SMILES
writes it as an atom, `[H]`; others are counted by the atom that bears them.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ..errors import Error
from .catalogue import SPLITS
from .files import unzipped
from .graph import Graph

# For each feature RDKit's method, and the values that have an index of their own; all others have the last one. The
# order is OGB's, of which other libraries' lists differ.
_ATOM_FEATURES: Mapping[str, tuple[object, ...]] = {
    "GetAtomicNum": (*range(1, 119), "misc"),
    "GetChiralTag": ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER", "misc"),
    "GetTotalDegree": (*range(11), "misc"),
    "GetFormalCharge": (*range(-5, 6), "misc"),
    "GetTotalNumHs": (*range(9), "misc"),
    "GetNumRadicalElectrons": (*range(5), "misc"),
    "GetHybridization": ("SP", "SP2", "SP3", "SP3D", "SP3D2", "misc"),
    "GetIsAromatic": (False, True),
    "IsInRing": (False, True),
}
_BOND_FEATURES: Mapping[str, tuple[object, ...]] = {
    "GetBondType": ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", "misc"),
    "GetStereo": ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY"),
    "GetIsConjugated": (False, True),
}

ATOM_SIZES = tuple(map(len, _ATOM_FEATURES.values()))
"""How many values each feature of an atom has."""

BOND_SIZES = tuple(map(len, _BOND_FEATURES.values()))
"""How many values each feature of a bond has."""

NODE_VALUES = 1 + sum(ATOM_SIZES)
"""The rows of the table of atoms: 0 for no value, then the values of one feature after those of another."""

EDGE_VALUES = 1 + int(np.prod(BOND_SIZES))
"""The rows of the table of bonds: 0 for no bond, then every combination of values."""

LONGEST = 5_000
"""How many characters a SMILES may have."""

_ATOM_OFFSETS = 1 + np.cumsum((0, *ATOM_SIZES[:-1]))
_FILE = "bace/bace.csv.gz"
_COUNTS = {"train": (695, 515), "valid": (67, 84), "test": (60, 92)}
"""The inactive and the active molecules of each split in the file."""

_Lookups = list[tuple[str, dict[str, int], int]]
_LOG_PREFIX = re.compile(r"^\[[0-9:]+\] (SMILES Parse Error: )?")


def _lookups(features: Mapping[str, tuple[object, ...]]) -> _Lookups:
    """Return for each feature its method, the index of each value as a string, and the index of all others."""
    return [
        (method, {str(value): index for index, value in enumerate(values)}, len(values) - 1)
        for method, values in features.items()
    ]


_ATOM_LOOKUPS, _BOND_LOOKUPS = _lookups(_ATOM_FEATURES), _lookups(_BOND_FEATURES)


def _indices(item: Any, lookups: _Lookups) -> list[int]:
    return [index.get(str(getattr(item, method)()), other) for method, index, other in lookups]


def parsed(smiles: str) -> Any:
    """Return RDKit's molecule, with its atoms in the order of the SMILES: the nodes of `molecule`."""
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        raise Error("Reading SMILES needs the package rdkit: pip install 'conserva[graphs]'.") from None
    if not isinstance(smiles, str):
        raise Error(f"smiles is {smiles!r}: give a string.")
    text = smiles.strip()
    if not text:
        raise Error(f"smiles is {smiles!r}, which has no atom: give one at least.")
    if len(text.split()) > 1:
        raise Error(f"smiles is {smiles!r}: give one SMILES without white space, and no name after it.")
    if len(text) > LONGEST or not text.isascii() or not text.isprintable():
        raise Error(f"smiles is {smiles!r:.80}: give at most {LONGEST:,} ASCII characters that can be printed.")
    options: Any = Chem.SmilesParserParams()
    options.removeHs = False
    capturing: Any = getattr(rdBase, "CaptureErrorLog", rdBase.BlockLogs)  # older releases capture nothing
    try:
        with rdBase.BlockLogs(), capturing() as capture:
            found = Chem.MolFromSmiles(text, options)
    except Exception as error:  # whatever RDKit finds
        raise Error(f"{smiles!r:.200} is no SMILES of a molecule ({type(error).__name__}: {error}). Mend it.") from None
    if found is None:
        raise Error(f"{smiles!r:.200} is no SMILES of a molecule{_reason(getattr(capture, 'messages', ''))}. Mend it.")
    return found


def _reason(log: str) -> str:
    """Return what RDKit says is wrong, and where, without the times and the drawing of its log."""
    lines = [_LOG_PREFIX.sub("", line).strip() for line in log.splitlines()]
    where = [line.rstrip(":") for line in lines if line.startswith("check for mistakes")]
    said = lines[:1] + where[:1]
    return f" ({'; '.join(said)})" if said else ""


def molecule(smiles: str, label: int | None = None) -> Graph:
    """Return a molecule as a graph of its atoms in the order of the SMILES, one edge for each direction of a bond."""
    found = parsed(smiles)
    nodes = np.array([_indices(atom, _ATOM_LOOKUPS) for atom in found.GetAtoms()]) + _ATOM_OFFSETS
    bonds = list(found.GetBonds())
    ends = np.array([(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds], dtype=np.int64).reshape(-1, 2)
    features = np.array([_indices(bond, _BOND_LOOKUPS) for bond in bonds], dtype=np.int64).reshape(-1, len(BOND_SIZES))
    ids = 1 + np.ravel_multi_index(tuple(features.T), BOND_SIZES)
    edges = np.concatenate([ends, ends[:, ::-1]]).T
    name, names = smiles.strip(), tuple(atom.GetSymbol() for atom in found.GetAtoms())
    return Graph(nodes, edges, np.concatenate([ids, ids]), label, name, names, {"kind": "molecule", "smiles": name})


def bace(split: str, folder: str | Path | None = None, *, random: int | None = None) -> list[Graph]:
    """Return a split of BACE: molecules that inhibit the enzyme beta-secretase 1 (label 1), and that do not (0).

    Parameters
    ----------
    split
        train (1,210 molecules), validation (151) or test (152), apart by Bemis-Murcko scaffolds.
    folder
        The folder that holds "bace/bace.csv.gz"; the one that CONSERVA_DATA names, if left out.
    random
        A seed: splits of the same sizes are drawn at random instead. They are easier than those by scaffold.
    """
    if split not in SPLITS:
        raise Error(f"split={split!r} is unknown: BACE has {', '.join(SPLITS)}.")
    rows = _rows(folder)
    names = [name for _, _, name in rows]
    if random is not None:
        Random(random).shuffle(names)
    wanted = "valid" if split == "validation" else split
    return [molecule(smiles, label) for (smiles, label, _), name in zip(rows, names, strict=True) if name == wanted]


def _rows(folder: str | Path | None) -> list[tuple[str, int, str]]:
    """Return the SMILES, the label and the split of every molecule, held against the published counts."""
    path, content = unzipped(_FILE, folder)
    try:
        table = csv.DictReader(io.StringIO(content.decode(), newline=""), strict=True)
        rows = [(row["smiles"], row["label"], row["split"]) for row in table]
    except Exception as error:  # a damaged table can raise many kinds of errors
        raise Error(f"{str(path)!r} is not a CSV file with the columns smiles, label and split ({error!r}).") from None
    found = Counter((split, label) for _, label, split in rows)
    expected = Counter({(split, str(label)): counts[label] for split, counts in _COUNTS.items() for label in (0, 1)})
    if found != expected:
        listed = ", ".join(f"{count:,} {split} {label}" for (split, label), count in sorted(found.items(), key=str))
        wanted = ", ".join(f"{count:,} {split} {label}" for (split, label), count in expected.items())
        raise Error(
            f"{str(path)!r}: expected {sum(expected.values()):,} rows ({wanted}, by split and label), found "
            f"{len(rows):,} ({listed[:200]}). Get the release as published, or read SMILES with molecule()."
        )
    return [(smiles, int(label), split) for smiles, label, split in rows]
