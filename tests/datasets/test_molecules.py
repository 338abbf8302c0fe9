"""Molecules as graphs: OGB's features written out by hand, BACE as published, and all that is no molecule."""

import gzip
import os
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import conserva
from conserva.datasets import molecules
from conserva.datasets.catalogue import SPLITS
from conserva.datasets.graph import Graph, structure
from conserva.datasets.molecules import ATOM_SIZES, BOND_SIZES, EDGE_VALUES, NODE_VALUES, bace, molecule, parsed

DATA = os.environ.get("CONSERVA_DATA")


@pytest.fixture(autouse=True)
def no_folder_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONSERVA_DATA", raising=False)


def atoms(graph: Graph) -> list[list[int]]:
    """Return the features of each node as indices into OGB's lists."""
    offsets = [1 + sum(ATOM_SIZES[:feature]) for feature in range(len(ATOM_SIZES))]
    return (graph.nodes - offsets).tolist()


def bonds(graph: Graph) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Return the features of each bond as indices into OGB's lists, and see that both directions have the same."""
    assert graph.edge_ids is not None
    found = {}
    for (a, b), one in zip(graph.edges.T.tolist(), (graph.edge_ids - 1).tolist(), strict=True):
        found[a, b] = (one // 12, one // 2 % 6, one % 2)
    assert all(found[b, a] == features for (a, b), features in found.items())
    return {ends: features for ends, features in found.items() if ends[0] < ends[1]}


# The features: atomic number - 1, chirality, degree with hydrogens, charge + 5, hydrogens, radical electrons,
# hybridisation (0 sp, 1 sp2, 2 sp3), aromatic, in a ring. Of bonds: type, stereo, conjugated.
CH3, C_OF_O = [5, 0, 4, 5, 3, 0, 2, 0, 0], [5, 0, 3, 5, 0, 0, 1, 0, 0]
O_OF_C, O_BETWEEN, OH = [7, 0, 1, 5, 0, 0, 1, 0, 0], [7, 0, 2, 5, 0, 0, 1, 0, 0], [7, 0, 2, 5, 1, 0, 1, 0, 0]
RING_CH, RING_C = [5, 0, 3, 5, 1, 0, 1, 1, 1], [5, 0, 3, 5, 0, 0, 1, 1, 1]
SINGLE, CONJUGATED, CARBONYL, AROMATIC = (0, 0, 0), (0, 0, 1), (1, 0, 1), (3, 0, 1)


def test_sizes() -> None:
    assert ATOM_SIZES == (119, 5, 12, 12, 10, 6, 6, 2, 2)
    assert BOND_SIZES == (5, 6, 2)
    assert NODE_VALUES == 174 + 1
    assert EDGE_VALUES == 60 + 1


def test_benzene() -> None:
    graph = molecule("c1ccccc1", 1)
    assert atoms(graph) == [RING_CH] * 6
    assert bonds(graph) == dict.fromkeys([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5)], AROMATIC)
    assert (graph.label, graph.name) == (1, "c1ccccc1")
    # The ids themselves: carbon is the sixth value of the first feature, and 0 is none.
    assert graph.nodes[0].tolist() == [6, 120, 128, 142, 150, 159, 166, 172, 174]
    assert set(graph.edge_ids.tolist()) == {1 + 3 * 12 + 0 * 2 + 1}
    assert atoms(molecule("C1=CC=CC=C1")) == [RING_CH] * 6


def test_aspirin() -> None:
    graph = molecule("CC(=O)Oc1ccccc1C(=O)O")
    assert atoms(graph) == [CH3, C_OF_O, O_OF_C, O_BETWEEN, RING_C, *[RING_CH] * 4, RING_C, C_OF_O, O_OF_C, OH]
    assert bonds(graph) == {
        (0, 1): SINGLE,
        (1, 2): CARBONYL,
        (1, 3): CONJUGATED,
        (3, 4): CONJUGATED,
        **dict.fromkeys([(4, 5), (5, 6), (6, 7), (7, 8), (8, 9), (4, 9)], AROMATIC),
        (9, 10): CONJUGATED,
        (10, 11): CARBONYL,
        (10, 12): CONJUGATED,
    }


def test_charged_nitro_group() -> None:
    graph = molecule("C[N+](=O)[O-]")
    assert atoms(graph) == [CH3, [6, 0, 3, 6, 0, 0, 1, 0, 0], O_OF_C, [7, 0, 1, 4, 0, 0, 1, 0, 0]]
    assert [features[0] for features in bonds(graph).values()] == [0, 1, 0]


def test_chiral_centre_and_double_bond_as_ogb_documents_them() -> None:
    graph = molecule("Cl[C@H](/C=C/C)Br")
    assert atoms(graph)[1] == [5, 2, 4, 5, 1, 0, 2, 0, 0]
    assert bonds(graph)[2, 3] == (1, 2, 0)
    assert atoms(molecule("Cl[C@@H](/C=C/C)Br"))[1] == [5, 1, 4, 5, 1, 0, 2, 0, 0]
    assert atoms(molecule("ClC(/C=C/C)Br"))[1] == [5, 0, 4, 5, 1, 0, 2, 0, 0]


@pytest.mark.parametrize(("smiles", "stereo"), [("C/C=C/C", 2), ("C/C=C\\C", 1), ("CC=CC", 0)])
def test_stereo_of_double_bonds(smiles: str, stereo: int) -> None:
    assert bonds(molecule(smiles)) == {(0, 1): SINGLE, (1, 2): (1, stereo, 0), (2, 3): SINGLE}


def test_values_outside_the_lists_are_the_last() -> None:
    assert atoms(molecule("*"))[0][0] == 118  # no element
    assert atoms(molecule("[Og]"))[0][0] == 117
    assert atoms(molecule("[Fe+6]"))[0][3] == 11
    assert atoms(molecule("[CH3]"))[0] == [5, 0, 3, 5, 3, 1, 2, 0, 0]
    assert atoms(molecule("C[Pt@SP1](F)(Cl)Br"))[1][1] == 4  # square planar
    assert bonds(molecule("N->[Fe]"))[0, 1][0] == 4  # dative
    assert atoms(molecule("[Na+]"))[0][6] == 5  # hybridisation s
    assert atoms(molecule("CC#N"))[2][6] == 0


def test_hydrogens_are_nodes_where_they_are_written() -> None:
    assert len(molecule("C")) == 1
    written = molecule("[H]C([H])([H])[H]")
    assert [features[0] for features in atoms(written)] == [0, 5, 0, 0, 0]
    assert atoms(written)[1] == [5, 0, 4, 5, 0, 0, 2, 0, 0]
    assert len(molecule("[H][H]")) == 2
    assert len(molecule("[CH4]")) == 1


def test_order_of_atoms_is_that_of_the_smiles() -> None:
    assert [row[0] + 1 for row in atoms(molecule("OCN"))] == [8, 6, 7]
    assert [row[0] + 1 for row in atoms(molecule(" NCO\n"))] == [7, 6, 8]
    assert [atom.GetSymbol() for atom in parsed("NCO").GetAtoms()] == ["N", "C", "O"]


def test_single_atom_and_salt() -> None:
    water = molecule("O")
    assert water.edges.shape == (2, 0)
    assert structure(water).distances.tolist() == [[0]]
    salt = molecule("CC[NH3+].[Cl-]")
    assert structure(salt).distances[3].tolist() == [20, 20, 20, 0]
    assert structure(salt).degrees.tolist() == [1, 2, 1, 0]


@pytest.mark.parametrize(
    ("smiles", "says"),
    [
        ("C1CC", ["'C1CC'", "unclosed ring for input: 'C1CC'"]),
        ("c1cccc1", ["Can't kekulize mol.  Unkekulized atoms: 0 1 2 3 4"]),
        ("C(C)(C)(C)(C)C", ["Explicit valence for atom # 0 C, 5, is greater than permitted"]),
        ("CXx", ["syntax error while parsing: CXx; check for mistakes around position 2"]),
        ("", ["smiles is ''", "no atom"]),
        (" \n", ["no atom"]),
        ("CC ethane", ["'CC ethane'", "white space"]),
        (None, ["smiles is None"]),
    ],
)
def test_what_is_no_molecule(smiles: str, says: list[str], capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(conserva.Error) as message:
        molecule(smiles)
    assert all(part in str(message.value) for part in says), str(message.value)
    assert "\n" not in str(message.value)
    assert capfd.readouterr() == ("", "")  # RDKit has not talked past us


def test_contradictory_stereo_is_none(capfd: pytest.CaptureFixture) -> None:
    assert bonds(molecule("C/C(/F)=C(/F)/C"))[1, 3] == (1, 0, 0)  # RDKit reads it so, and would warn
    assert capfd.readouterr() == ("", "")


def test_log_of_rdkit_is_as_it_was(capfd: pytest.CaptureFixture) -> None:
    from rdkit import Chem

    with pytest.raises(conserva.Error):
        molecule("C1CC")
    Chem.MolFromSmiles("C1CC")
    assert "unclosed ring" in capfd.readouterr().err


def test_older_rdkit_gives_no_reason(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    from rdkit import rdBase

    monkeypatch.delattr(rdBase, "CaptureErrorLog")
    with pytest.raises(conserva.Error, match=r"^'C1CC' is not a valid SMILES\. Correct it\.$"):
        molecule("C1CC")
    assert capfd.readouterr() == ("", "")


def test_rdkit_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(conserva.Error, match=r"conserva\[graphs\]"):
        molecule("C")


# BACE: a file of a few molecules that stands for the published one.

ROWS = [
    ("C", 1, "train"),
    ("CC", 0, "train"),
    ("N", 0, "valid"),
    ("O", 1, "test"),
    ("CCC", 0, "train"),
    ("F", 1, "test"),
]


def write(folder: Path, rows: list[tuple[str, int, str]], columns: str = "smiles,label,split,split_original") -> Path:
    lines = [columns, *(f"{smiles},{label},{split},train" for smiles, label, split in rows)]
    (folder / "bace").mkdir(exist_ok=True)
    path = folder / "bace" / "bace.csv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path, ROWS)
    monkeypatch.setattr(molecules, "_COUNTS", {"train": (2, 1), "valid": (1, 0), "test": (0, 2)})
    return tmp_path


def test_splits_of_a_file(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = {split: [(graph.name, graph.label) for graph in bace(split, small)] for split in SPLITS}
    assert read == {"train": [("C", 1), ("CC", 0), ("CCC", 0)], "validation": [("N", 0)], "test": [("O", 1), ("F", 1)]}
    monkeypatch.setenv("CONSERVA_DATA", str(small))
    assert len(bace("train")) == 3


def test_random_splits_of_a_file(small: Path) -> None:
    drawn = {seed: [[graph.name for graph in bace(split, small, random=seed)] for split in SPLITS] for seed in range(8)}
    for splits in drawn.values():
        assert list(map(len, splits)) == [3, 1, 2]
        assert sorted(name for names in splits for name in names) == sorted(smiles for smiles, _, _ in ROWS)
    assert len({str(splits) for splits in drawn.values()}) > 4
    assert [[graph.name for graph in bace(split, small, random=3)] for split in SPLITS] == drawn[3]


def refused(call: object, *says: str) -> None:
    with pytest.raises(conserva.Error) as message:
        call()  # type: ignore[operator]
    assert all(part in str(message.value) for part in says), str(message.value)


def test_files_that_are_refused(small: Path) -> None:
    refused(lambda: bace("valid", small), "split='valid'", "train, validation, test")
    refused(lambda: bace("test"), "'bace/bace.csv.gz'", "CONSERVA_DATA")
    refused(lambda: bace("test", small / "nowhere"), "nowhere", "'bace/bace.csv.gz'")
    path = write(small, ROWS[1:])
    refused(lambda: bace("test", small), str(path), "expected 6 rows", "1 train 1", "found 5")
    write(small, [*ROWS[:-1], ("F", 0, "test")])
    refused(lambda: bace("train", small), "1 test 0")
    write(small, ROWS, "smiles,label,fold,split_original")
    refused(lambda: bace("train", small), "the columns smiles, label and split", "'split'")
    path.write_bytes(path.read_bytes()[:-9])
    refused(lambda: bace("train", small), str(path), "not a complete .gz file")
    path.write_text("smiles,label,split")
    refused(lambda: bace("train", small), "not a complete .gz file")
    path.write_bytes(gzip.compress(b"smiles,label,split\n\xff,1,test"))
    refused(lambda: bace("train", small), "not a CSV file")


# BACE as published.


@cache
def published() -> dict[str, list[Graph]]:
    if not DATA:
        pytest.skip("no folder of datasets: set CONSERVA_DATA")
    return {split: bace(split, DATA) for split in SPLITS}


def test_published_splits() -> None:
    read = published()
    assert {split: Counter(graph.label for graph in graphs) for split, graphs in read.items()} == {
        "train": {0: 695, 1: 515},
        "validation": {0: 67, 1: 84},
        "test": {0: 60, 1: 92},
    }
    assert len({graph.name for graphs in read.values() for graph in graphs}) == 1513
    drawn = [graph.name for graph in bace("test", DATA, random=0)]
    assert len(drawn) == 152
    assert drawn != [graph.name for graph in read["test"]]


def test_published_molecules() -> None:
    graphs = [graph for graphs in published().values() for graph in graphs]
    sizes = [len(graph) for graph in graphs]
    assert round(float(np.mean(sizes)), 2) == 34.09
    assert (min(sizes), max(sizes)) == (10, 97)
    assert len({edge for graph in graphs for edge in graph.edge_ids.tolist()}) == 11
    structures = [structure(graph) for graph in graphs]
    assert not any((one.distances == 20).any() for one in structures)  # all are connected
    assert sum(bool((one.distances == 19).any()) for one in structures) == 266
    assert max(int(one.degrees.max()) for one in structures) == 4
    assert all(row[0] != 0 for graph in graphs for row in atoms(graph))  # no hydrogen is written
