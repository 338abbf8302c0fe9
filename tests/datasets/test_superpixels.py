"""MNIST as graphs of superpixels: maps, features and edges by loops, and a cache that is never trusted when damaged."""

import gzip
import hashlib
import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import networkx as nx
import numpy as np
import pytest

import conserva
from conserva.datasets import mnist
from conserva.datasets import superpixels as module
from conserva.datasets.graph import Graph, structure
from conserva.datasets.segments import segmented
from conserva.datasets.superpixels import blank, digits, superpixels


def strokes(seed: int) -> np.ndarray:
    """Return an image of a thick line on black, as a digit is."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:28, :28]
    image = np.zeros((28, 28))
    points = random.uniform(6, 21, (4, 2))
    for a, b in itertools.pairwise(points):
        for part in np.linspace(0, 1, 20):
            cy, cx = a + part * (b - a)
            image = np.maximum(image, np.exp(-((y - cy) ** 2 + (x - cx) ** 2) / 2))
    return (255 * image * (image > 0.2)).astype(np.uint8)


@pytest.fixture(autouse=True)
def folders_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONSERVA_DATA", raising=False)
    monkeypatch.setenv("CONSERVA_CACHE", str(tmp_path / "cache"))


def idx(folder: Path, file: str, magic: int, array: np.ndarray) -> str:
    content = np.array([magic, *array.shape], ">i4").tobytes() + array.tobytes()
    (folder / "mnist").mkdir(exist_ok=True)
    (folder / "mnist" / file).write_bytes(gzip.compress(content))
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with 24 images for train and 6 for test, which stand for those published."""
    for split, size, first in (("train", 24, 0), ("test", 6, 100)):
        images = np.stack([strokes(first + number) for number in range(size)])
        labels = np.arange(size, dtype=np.uint8) % 10
        for table, magic, array in ((mnist.IMAGES, 2051, images), (mnist.LABELS, 2049, labels)):
            md5 = idx(tmp_path, table[split].file, magic, array)
            monkeypatch.setitem(table, split, replace(table[split], shape=array.shape, md5=md5))
    monkeypatch.setattr(mnist, "HELD_OUT", 4)
    return tmp_path


def cached(tmp_path: Path, split: str = "test") -> Path:
    return tmp_path / "cache" / f"mnist-{split}-superpixels.npz"


def counting(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return a stand-in for the search for superpixels, which counts its calls."""
    made = Mock(side_effect=segmented)
    monkeypatch.setattr(module._segments(), "segmented", made)
    return made


def regions_of(graph: Graph) -> np.ndarray:
    assert graph.picture is not None
    assert graph.picture["kind"] == "superpixels"
    return graph.picture["regions"]


# Maps and graphs.


@pytest.mark.parametrize("seed", range(6))
def test_map_features_and_edges_by_loops(seed: int) -> None:
    image = strokes(seed)
    graph = superpixels(image, 3, "drawn")
    labels = regions_of(graph)
    assert (graph.picture["image"] == image).all()
    assert (labels.shape, labels.dtype) == ((28, 28), np.uint8)
    assert 70 <= len(graph) <= 75
    assert set(labels.ravel().tolist()) == set(range(len(graph)))
    assert (graph.label, graph.name, graph.edge_ids) == (3, "drawn", None)
    pixels: dict[int, list[tuple[int, int]]] = {node: [] for node in range(len(graph))}
    joined = set()
    for y, x in itertools.product(range(28), range(28)):
        pixels[int(labels[y, x])].append((y, x))
        for near in ((y + 1, x), (y, x + 1)):
            if max(near) < 28 and labels[near] != labels[y, x]:
                joined |= {(int(labels[near]), int(labels[y, x])), (int(labels[y, x]), int(labels[near]))}
    assert sorted(map(list, joined)) == graph.edges.T.tolist()
    grid = nx.grid_2d_graph(28, 28)
    for node, its in pixels.items():
        mean = sum(image[place] / 255 for place in its) / len(its)
        y, x = (sum(place[axis] for place in its) / len(its) for axis in (0, 1))
        assert graph.nodes[node].tolist() == pytest.approx([mean, y / 13.5 - 1, x / 13.5 - 1], abs=1e-6)
        assert nx.is_connected(grid.subgraph(its))


def test_neighbours_most_alike_become_one() -> None:
    from skimage.segmentation import slic

    image = strokes(1) / 255
    labels = slic(image, n_segments=75, compactness=0.5, channel_axis=None, start_label=0)
    regions = {name: set(map(tuple, np.argwhere(labels == name).tolist())) for name in range(labels.max() + 1)}
    assert len(regions) > 75
    while len(regions) > 75:
        found = []
        for (a, its), (b, others) in itertools.combinations(regions.items(), 2):
            if any((y + dy, x + dx) in others for y, x in its for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0))):
                one, other = (sum(image[place] for place in part) / len(part) for part in (its, others))
                found.append((round(abs(one - other), 12), len(its) + len(others), a, b))
        _, _, a, b = min(found)
        regions[a] |= regions.pop(b)
    made = regions_of(superpixels(image))
    found_here = {frozenset(map(tuple, np.argwhere(made == name).tolist())) for name in range(75)}
    assert found_here == set(map(frozenset, regions.values()))


def test_nearest_edges() -> None:
    graph = superpixels(strokes(2), edges="nearest")
    centres = graph.nodes[:, 1:].astype(float)
    joined = set()
    for node, centre in enumerate(centres):
        far = [(round(float(((centre - other) ** 2).sum()), 6), place) for place, other in enumerate(centres)]
        near = [place for _, place in sorted(far) if place != node][:8]
        joined |= {(node, place) for place in near} | {(place, node) for place in near}
    assert set(map(tuple, graph.edges.T.tolist())) == joined
    assert structure(graph).degrees.min() >= 8


def test_images_without_a_digit() -> None:
    for image in (np.zeros((28, 28), np.uint8), np.full((28, 28), 255, np.uint8)):
        graph = superpixels(image)
        assert len(graph) == 75
        assert (graph.nodes[:, 0] == image[0, 0] / 255).all()
        assert not (structure(graph).distances == 20).any()


def test_same_image_has_the_same_graph() -> None:
    image = strokes(4)
    graph, other = superpixels(image), superpixels(image / 255)
    assert (regions_of(graph) == regions_of(other)).all()
    assert (graph.picture["image"] == other.picture["image"]).all()
    assert (graph.nodes == other.nodes).all()
    assert (graph.edges == other.edges).all()


def test_blank_superpixels_keep_their_places() -> None:
    graph = superpixels(strokes(5), 5)
    kept = np.arange(len(graph)) % 2 == 0
    black = blank(graph, kept)
    assert (black.nodes[kept] == graph.nodes[kept]).all()
    assert not black.nodes[~kept, 0].any()
    assert (black.nodes[:, 1:] == graph.nodes[:, 1:]).all()
    assert (black.edges == graph.edges).all()
    assert black.label == 5
    assert not blank(graph, []).nodes[:, 0].any()
    assert graph.nodes[:, 0].any()


# Splits.


def test_splits_of_the_files(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = {split: digits(split, folder=small) for split in ("train", "validation", "test")}
    assert {split: len(graphs) for split, graphs in read.items()} == {"train": 20, "validation": 4, "test": 6}
    names = [graph.name for split in ("train", "validation") for graph in read[split]]
    assert sorted(names) == sorted(f"train {row}" for row in range(24))
    for graphs in read.values():
        for graph in graphs:
            split, row = graph.name.split()
            image = strokes(int(row) + (100 if split == "test" else 0))
            its = superpixels(image)
            assert (regions_of(graph) == regions_of(its)).all()
            assert (graph.picture["image"] == image).all()
            assert (graph.nodes == its.nodes).all()
            assert (graph.edges == its.edges).all()
            assert graph.label == int(row) % 10
    monkeypatch.setenv("CONSERVA_DATA", str(small))
    assert [graph.name for graph in digits("validation")] == [graph.name for graph in read["validation"]]


def test_some_images_of_a_split(small: Path) -> None:
    names = {seed: [graph.name for graph in digits("train", 5, seed, small)] for seed in range(4)}
    assert len({str(some) for some in names.values()}) > 1
    for seed, some in names.items():
        assert len(set(some)) == 5
        assert some == sorted(some, key=lambda name: int(name.split()[1]))
        assert some == [graph.name for graph in digits("train", 5, seed, small)]
    assert len(digits("test", 1000, 0, small)) == 6
    assert digits("test", 2, 0, small, edges="nearest")[0].edges.shape[1] >= 75 * 8 > 320


# The cache.


def test_superpixels_are_found_once(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, said = counting(monkeypatch), []
    digits("test", 2, 0, small, lambda *numbers: said.append(numbers))
    assert (made.call_count, said) == (2, [(2, 2)])
    whole = digits("test", folder=small, progress=lambda *numbers: said.append(numbers))
    assert (made.call_count, said) == (6, [(2, 2), (4, 4)])
    again = digits("test", folder=small, progress=lambda *numbers: said.append(numbers))
    assert (made.call_count, len(said)) == (6, 2)
    assert [path.name for path in (small / "cache").iterdir()] == [cached(small).name]
    assert all((regions_of(one) == regions_of(other)).all() for one, other in zip(whole, again, strict=True))


def test_interrupted_work_is_kept(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = counting(monkeypatch)
    monkeypatch.setattr(module, "_AT_ONCE", 2)

    def interrupt(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        digits("test", folder=small, progress=interrupt)
    assert made.call_count == 4
    assert len(digits("test", folder=small)) == 6
    assert made.call_count == 6


def test_work_is_saved_on_the_way(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    monkeypatch.setattr(module, "SAVED_EVERY", 2)
    rows: list[int] = []

    def look(done: int, total: int) -> None:
        rows.append(len(np.load(cached(small))["rows"]) if cached(small).exists() else 0)

    digits("test", folder=small, progress=look)
    assert rows == [0, 2, 4]
    assert len(np.load(cached(small))["rows"]) == 6


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"maps.npy") + 200] ^= 0xFF
    path.write_bytes(content)


def changed(**changes: object) -> object:
    def change(path: Path) -> None:
        kept = dict(np.load(path)) | changes
        np.savez_compressed(path, **{name: array for name, array in kept.items() if array is not None})

    return change


@pytest.mark.parametrize(
    "damage",
    {
        "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        "flipped": flipped,
        "empty": lambda path: path.write_bytes(b""),
        "text": lambda path: path.write_text("no archive"),
        "one array": lambda path: np.save(path.open("wb"), np.ones(3)),
        "another key": changed(key="conserva superpixels 0"),
        "no key": changed(key=None),
        "pickled": changed(key=np.array([{}], dtype=object)),
        "rows out of range": changed(rows=np.arange(1, 7)),
        "rows twice": changed(rows=np.zeros(6, int)),
        "fewer rows": changed(rows=np.arange(5)),
        "other maps": changed(maps=np.zeros((6, 28, 28), np.int64)),
    }.items(),
    ids=lambda item: item[0],
)
def test_cache_that_is_damaged_or_foreign(small: Path, monkeypatch: pytest.MonkeyPatch, damage: tuple) -> None:
    made = counting(monkeypatch)
    before = digits("test", folder=small)
    damage[1](cached(small))
    after = digits("test", folder=small)
    assert all((regions_of(one) == regions_of(other)).all() for one, other in zip(before, after, strict=True))
    digits("test", folder=small)
    assert made.call_count == 12


def test_failed_write_leaves_what_was(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits("test", 2, 0, small)
    before = cached(small).read_bytes()

    def full(file: object, **arrays: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(conserva.Error, match="No space left on device"):
        digits("test", folder=small)
    assert cached(small).read_bytes() == before
    assert list((small / "cache").iterdir()) == [cached(small)]


def test_processes_find_the_same(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = digits("train", folder=small)
    cached(small, "train").unlink()
    made = counting(monkeypatch)
    monkeypatch.setattr(module, "WORTH_SHARING", 1)
    monkeypatch.setattr(module, "_AT_ONCE", 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    said: list[tuple[int, int]] = []
    together = digits("train", folder=small, progress=lambda *numbers: said.append(numbers))
    assert made.call_count == 0
    assert (said[-1], len(said)) == ((20, 20), 7)
    assert all((regions_of(one) == regions_of(other)).all() for one, other in zip(alone, together, strict=True))


def test_process_that_fails(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORTH_SHARING", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(module, "__file__", str(small / "nowhere" / "superpixels.py"))
    with pytest.raises(conserva.Error, match="superpixels failed with 2"):
        digits("test", folder=small)


def test_folder_of_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for platform, variable, value, expected in (
        ("linux", "XDG_CACHE_HOME", "/x", "/x/conserva"),
        ("linux", "XDG_CACHE_HOME", "", "/home/me/.cache/conserva"),
        ("darwin", "LOCALAPPDATA", "", "/home/me/Library/Caches/conserva"),
        ("win32", "LOCALAPPDATA", "/local", "/local/conserva/Cache"),
        ("linux", "CONSERVA_CACHE", "~/mine", "/home/me/mine"),
    ):
        monkeypatch.setenv("CONSERVA_CACHE", "")
        monkeypatch.setenv(variable, value)
        monkeypatch.setattr(sys, "platform", platform)
        assert module._cache_folder() == Path(expected)


# What is refused.


def refused(call: object, *says: str) -> None:
    with pytest.raises(conserva.Error) as message:
        call()  # type: ignore[operator]
    assert all(part in str(message.value) for part in says), str(message.value)


def test_arguments_that_are_refused(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = strokes(0)
    refused(lambda: digits("dev", folder=small), "split='dev'", "train, validation, test")
    refused(lambda: digits("test", 0, folder=small), "count=0")
    refused(lambda: digits("test"), "'mnist/t10k-images-idx3-ubyte.gz'", "CONSERVA_DATA")
    refused(lambda: digits("test", folder=small / "nowhere"), "nowhere")
    refused(lambda: superpixels(image, edges="all"), "edges='all'", '"nearest"')
    refused(lambda: digits("test", folder=small, edges="all"), "edges='all'")
    assert not cached(small).exists()  # refused before minutes are spent
    refused(lambda: superpixels(image[1:]), "(27, 28)")
    refused(lambda: superpixels(image.astype(int)), "int64")
    refused(lambda: superpixels(image.astype(float)), "to 253.0")
    refused(lambda: superpixels(np.full((28, 28), np.nan)), "nan")
    refused(lambda: blank(Graph(np.ones((2, 3), int), np.zeros((2, 0))), [0]), "give a graph of superpixels")
    refused(lambda: blank(superpixels(image), [75]), "the node 75")
    (small / "file").write_text("")
    monkeypatch.setenv("CONSERVA_CACHE", str(small / "file" / "cache"))
    refused(lambda: digits("test", folder=small), "file/cache", "CONSERVA_CACHE")
    monkeypatch.setitem(sys.modules, "conserva.datasets.segments", None)
    monkeypatch.delattr(conserva.datasets, "segments")
    refused(lambda: superpixels(image), "conserva[graphs]")


def test_files_that_are_refused(small: Path) -> None:
    path = small / "mnist" / mnist.IMAGES["test"].file
    whole = gzip.decompress(path.read_bytes())
    for content, says in (
        (b"\0\0", "has 2 bytes"),
        (whole[:3] + b"\1" + whole[4:], "(2049, 6, 28, 28), not (2051, 6, 28, 28)"),
        (whole[:7] + b"\7" + whole[8:], "(2051, 7, 28, 28)"),
        (whole[:-1], "MD5"),
        (whole[:-1] + b"\1", "MD5"),
    ):
        path.write_bytes(gzip.compress(content))
        refused(lambda: digits("test", folder=small), str(path), says)
    path.write_bytes(gzip.compress(whole)[:-20])
    refused(lambda: digits("test", folder=small), "not a complete .gz file")
    path.write_bytes(gzip.compress(whole))
    labels = small / "mnist" / mnist.LABELS["test"].file
    labels.write_bytes(gzip.compress(gzip.decompress(labels.read_bytes())[:-1] + b"\0"))
    refused(lambda: digits("test", folder=small), str(labels), "MD5")
