"""Molecules as graphs of atoms: SMILES, and the dataset BACE of Ali et al. (ICML 2022).

Atoms have the nine features of the Open Graph Benchmark (OGB), and bonds its three. A hydrogen is a node if the SMILES
has it as an atom, `[H]`; other hydrogens are counted in a feature of their atom.
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

# RDKit's method of each feature -> the values with their own index; other values share the last index. The order is
# that of OGB, from which other libraries differ.
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
"""The number of values of each feature of an atom."""

BOND_SIZES = tuple(map(len, _BOND_FEATURES.values()))
"""The number of values of each feature of a bond."""

NODE_VALUES = 1 + sum(ATOM_SIZES)
"""The size of the embedding of atoms: row 0 is padding, then come the values of each feature in turn."""

EDGE_VALUES = 1 + int(np.prod(BOND_SIZES))
"""The size of the embedding of bonds: row 0 is padding, then comes every combination of values."""

LONGEST = 5_000
"""The maximum number of characters of a SMILES."""

_ATOM_OFFSETS = 1 + np.cumsum((0, *ATOM_SIZES[:-1]))
_FILE = "bace/bace.csv.gz"
_COUNTS = {"train": (695, 515), "valid": (67, 84), "test": (60, 92)}
"""Split -> the number of inactive and of active molecules in the file."""

_Lookups = list[tuple[str, dict[str, int], int]]
_LOG_PREFIX = re.compile(r"^\[[0-9:]+\] (SMILES Parse Error: )?")


def _lookups(features: Mapping[str, tuple[object, ...]]) -> _Lookups:
    """Return for each feature its method, the index of each value as a string, and the index of other values."""
    return [
        (method, {str(value): index for index, value in enumerate(values)}, len(values) - 1)
        for method, values in features.items()
    ]


_ATOM_LOOKUPS, _BOND_LOOKUPS = _lookups(_ATOM_FEATURES), _lookups(_BOND_FEATURES)


def _indices(item: Any, lookups: _Lookups) -> list[int]:
    return [index.get(str(getattr(item, method)()), other) for method, index, other in lookups]


def parsed(smiles: str) -> Any:
    """Return the RDKit molecule of a SMILES, whose atoms have the order of the nodes of `molecule`."""
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        raise Error("Reading SMILES needs the package rdkit: pip install 'conserva[graphs]'.") from None
    if not isinstance(smiles, str):
        raise Error(f"smiles is {smiles!r}: give a string.")
    text = smiles.strip()
    if not text:
        raise Error(f"smiles is {smiles!r}, which has no atom: give at least one.")
    if len(text.split()) > 1:
        raise Error(f"smiles is {smiles!r}: give one SMILES without white space, and no name after it.")
    if len(text) > LONGEST or not text.isascii() or not text.isprintable():
        raise Error(f"smiles is {smiles!r:.80}: give at most {LONGEST:,} printable ASCII characters.")
    options: Any = Chem.SmilesParserParams()
    options.removeHs = False
    capturing: Any = getattr(rdBase, "CaptureErrorLog", rdBase.BlockLogs)  # older releases capture nothing
    try:
        with rdBase.BlockLogs(), capturing() as capture:
            parsed_molecule = Chem.MolFromSmiles(text, options)
    except Exception as error:  # RDKit raises many types of exceptions
        raise Error(f"{smiles!r:.200} is not a valid SMILES ({type(error).__name__}: {error}). Correct it.") from None
    if parsed_molecule is None:
        raise Error(f"{smiles!r:.200} is not a valid SMILES{_reason(getattr(capture, 'messages', ''))}. Correct it.")
    return parsed_molecule


def _reason(log: str) -> str:
    """Return the error and its position from RDKit's log, without time stamps and drawings."""
    lines = [_LOG_PREFIX.sub("", line).strip() for line in log.splitlines()]
    where = [line.rstrip(":") for line in lines if line.startswith("check for mistakes")]
    messages = lines[:1] + where[:1]
    return f" ({'; '.join(messages)})" if messages else ""


def molecule(smiles: str, label: int | None = None) -> Graph:
    """Return a molecule as a graph of its atoms in the order of the SMILES, with two edges for each bond."""
    atoms_and_bonds = parsed(smiles)
    nodes = np.array([_indices(atom, _ATOM_LOOKUPS) for atom in atoms_and_bonds.GetAtoms()]) + _ATOM_OFFSETS
    bonds = list(atoms_and_bonds.GetBonds())
    ends = np.array([(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds], dtype=np.int64).reshape(-1, 2)
    features = np.array([_indices(bond, _BOND_LOOKUPS) for bond in bonds], dtype=np.int64).reshape(-1, len(BOND_SIZES))
    ids = 1 + np.ravel_multi_index(tuple(features.T), BOND_SIZES)
    edges = np.concatenate([ends, ends[:, ::-1]]).T
    name, names = smiles.strip(), tuple(atom.GetSymbol() for atom in atoms_and_bonds.GetAtoms())
    return Graph(nodes, edges, np.concatenate([ids, ids]), label, name, names, {"kind": "molecule", "smiles": name})


def bace(split: str, folder: str | Path | None = None, *, random: int | None = None) -> list[Graph]:
    """Return a split of BACE: molecules that inhibit the enzyme beta-secretase 1 (label 1) or do not (label 0).

    Parameters
    ----------
    split
        train (1,210 molecules), validation (151) or test (152), split by Bemis-Murcko scaffolds.
    folder
        The folder that contains "bace/bace.csv.gz"; by default the one in CONSERVA_DATA.
    random
        A seed for random splits of the same sizes, which are easier than splits by scaffold.
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
    """Return SMILES, label and split of every molecule, after a check of the published counts."""
    path, content = unzipped(_FILE, folder)
    try:
        table = csv.DictReader(io.StringIO(content.decode(), newline=""), strict=True)
        rows = [(row["smiles"], row["label"], row["split"]) for row in table]
    except Exception as error:  # a damaged table can raise many types of exceptions
        raise Error(f"{str(path)!r} is not a CSV file with the columns smiles, label and split ({error!r}).") from None
    actual = Counter((split, label) for _, label, split in rows)
    expected = Counter({(split, str(label)): counts[label] for split, counts in _COUNTS.items() for label in (0, 1)})
    if actual != expected:
        listed = ", ".join(f"{count:,} {split} {label}" for (split, label), count in sorted(actual.items(), key=str))
        wanted = ", ".join(f"{count:,} {split} {label}" for (split, label), count in expected.items())
        raise Error(
            f"{str(path)!r}: expected {sum(expected.values()):,} rows ({wanted}, by split and label), found "
            f"{len(rows):,} ({listed[:200]}). Download the published release, or read SMILES with molecule()."
        )
    return [(smiles, int(label), split) for smiles, label, split in rows]
