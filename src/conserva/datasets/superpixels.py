"""MNIST as graphs of superpixels, as in Ali et al. (ICML 2022).

The graphs of Monti et al. (CVPR 2017) are published, but not how they were computed: these have the same number of
nodes, but are not identical. Superpixels are cached on disk, since computing them takes minutes; graphs are not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from random import Random
from types import ModuleType

import numpy as np

from .._util.cores import cores
from .._util.files import atomic_file, expanded
from ..errors import Error
from . import mnist
from .graph import Graph, chosen

CACHE_VARIABLE = "CONSERVA_CACHE"
"""The environment variable with the folder of the cache of superpixels."""

NODE_FEATURES = 3
"""Mean intensity, from 0 to 1, then y and x of the centre, from -1 to 1."""

NEAREST = 8
"""The number of neighbours of a node with edges="nearest"."""

SAVED_EVERY = 10_000
"""The cache is saved after this number of new images, so an interrupted process loses at most as many."""

WORTH_SHARING = 1_000
"""The minimum number of images for worker processes, which take a second to start."""

_VERSION = 1  # part of the cache key: increment it when the file format or the computation changes
_AT_ONCE = 100


def superpixels(image: np.ndarray, label: int | None = None, name: str = "image", *, edges: str = "adjacent") -> Graph:
    """Return the graph of an image's superpixels; `picture["regions"]` has the superpixel of each pixel.

    Parameters
    ----------
    image
        28 x 28, uint8 or floats from 0 to 1, with a background of 0.
    edges
        "adjacent" connects superpixels that share a border; "nearest" connects each with the eight nearest centres.
    """
    given = np.asarray(image)
    if given.shape != (28, 28) or (given.dtype != np.uint8 and given.dtype.kind != "f"):
        raise Error(f"image has the shape {given.shape} in {given.dtype}: give 28 x 28 bytes, or numbers from 0 to 1.")
    values = given / 255 if given.dtype == np.uint8 else given.astype(np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise Error(f"image goes from {values.min()} to {values.max()}: give bytes, or numbers from 0 to 1.")
    _check_kind(edges)
    pixels = given if given.dtype == np.uint8 else np.rint(values * 255).astype(np.uint8)
    return _graph(values, pixels, _segments().segmented(values), label, name, edges)


def digits(
    split: str,
    count: int | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    edges: str = "adjacent",
) -> list[Graph]:
    """Return images of MNIST as graphs of superpixels.

    Superpixels are cached in the platform's cache folder, or in the one in CONSERVA_CACHE.

    Parameters
    ----------
    split
        train (55,000 images), validation (5,000, held out of the published train) or test (10,000).
    count
        The number of images, drawn at random with `seed`, in the order of the file; None for all.
    folder
        The folder that contains "mnist/"; by default the one in CONSERVA_DATA.
    progress
        Called with the number of images done and the total, while superpixels are computed.
    """
    if count is not None and count < 1:
        raise Error(f"count={count} is too small: give 1 or more, or None for all.")
    _check_kind(edges)
    file, images, labels, rows = mnist.read(split, folder)
    if count is not None and count < len(rows):
        rows = np.array(sorted(Random(seed).sample(rows.tolist(), count)))
    maps = _cached_maps(file, images, rows, progress)
    return [
        _graph(images[row] / 255, images[row], regions, int(labels[row]), f"{file} {row}", edges)
        for row, regions in zip(rows.tolist(), maps, strict=True)
    ]


def blank(graph: Graph, kept: np.ndarray | list[int]) -> Graph:
    """Return a graph of superpixels in which those not kept are black; their coordinates and edges are unchanged."""
    if graph.nodes.dtype.kind != "f" or graph.nodes.shape[1] != NODE_FEATURES:
        raise Error(
            f"The graph {graph.name!r} has nodes x features {graph.nodes.shape} in {graph.nodes.dtype}: "
            f"give a graph of superpixels, with {NODE_FEATURES} numbers each."
        )
    nodes = graph.nodes.copy()
    nodes[~chosen(graph, kept), 0] = 0
    return replace(graph, nodes=nodes, picture=None)


# From an image to a graph.


def _segments() -> ModuleType:
    try:
        from . import segments
    except ImportError:
        raise Error("Superpixels need the package scikit-image: pip install 'conserva[graphs]'.") from None
    return segments


def _graph(
    values: np.ndarray, image: np.ndarray, labels: np.ndarray, label: int | None, name: str, edges: str
) -> Graph:
    flat = labels.ravel()
    sizes = np.bincount(flat)
    high, wide = labels.shape
    y, x = np.divmod(np.arange(flat.size), wide)
    columns = (values.ravel(), y / (high - 1) * 2 - 1, x / (wide - 1) * 2 - 1)
    nodes = np.stack([np.bincount(flat, column) / sizes for column in columns], 1)
    adjacency = _nearest(nodes[:, 1:]) if edges == "nearest" else _segments().neighbours(labels)
    picture = {"kind": "superpixels", "image": image, "regions": labels}
    return Graph(nodes, np.stack(np.nonzero(adjacency)), None, label, name, picture=picture)


def _check_kind(edges: str) -> None:
    if edges not in ("adjacent", "nearest"):
        raise Error(f'edges={edges!r} is unknown: give "adjacent" or "nearest".')


def _nearest(centres: np.ndarray) -> np.ndarray:
    """Return the adjacency matrix of nearest neighbours, made symmetric; of equal distances, the first nodes count."""
    squared = ((centres[:, None] - centres) ** 2).sum(2).round(9)
    np.fill_diagonal(squared, np.inf)
    nearest = np.zeros(squared.shape, bool)
    np.put_along_axis(nearest, np.argsort(squared, 1, kind="stable")[:, :NEAREST], True, 1)
    np.fill_diagonal(nearest, False)  # needed if there are not more nodes than that
    adjacency: np.ndarray = nearest | nearest.T
    return adjacency


# Maps of superpixels, and their cache.


def _cached_maps(
    file: str, images: np.ndarray, rows: np.ndarray, progress: Callable[[int, int], None] | None
) -> np.ndarray:
    """Return the maps of rows; those that are not in the cache are computed and added to it."""
    path = _cache_folder() / f"mnist-{file}-superpixels.npz"
    key = _key(mnist.IMAGES[file].md5)
    known, maps = _read(path, key, len(images))
    index = np.full(len(images), -1)
    index[known] = np.arange(len(known))
    missing = rows[index[rows] < 0]
    index[missing] = np.arange(len(known), len(known) + len(missing))
    if len(missing):
        _check_writable(path.parent)
        done, unsaved = 0, 0
        parts = [maps]
        try:
            for computed in _computed(images[missing]):
                parts.append(computed)
                done, unsaved = done + len(computed), unsaved + len(computed)
                if progress is not None:
                    progress(done, len(missing))
                if unsaved >= SAVED_EVERY and done < len(missing):
                    _write(path, key, np.concatenate([known, missing[:done]]), np.concatenate(parts))
                    unsaved = 0
        finally:  # keep what was computed before an interruption
            maps = np.concatenate(parts)
            if unsaved:
                _write(path, key, np.concatenate([known, missing[:done]]), maps)
    result: np.ndarray = maps[index[rows]]
    return result


def _computed(images: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the maps of images in order, in blocks; many images are computed by several processes."""
    count = cores()
    blocks = [images[start : start + _AT_ONCE] for start in range(0, len(images), _AT_ONCE)]
    if count == 1 or len(images) < WORTH_SHARING:
        segmented = _segments().segmented
        for block in blocks:
            yield np.stack([segmented(image / 255) for image in block])
        return
    running = [_started(np.concatenate(blocks[core::count])) for core in range(min(count, len(blocks)))]
    try:
        for number, block in enumerate(blocks):  # block i was given to process i modulo count
            yield _answer(running[number % count], block.shape)
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _started(images: np.ndarray) -> subprocess.Popen[bytes]:
    """Start a worker process and send it its images. SLIC holds the GIL, so threads would not run in parallel."""
    program = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("segments.py"))]
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # the process failed, which `_answer` reports
        process.stdin.write(images.tobytes())  # does not deadlock: it reads all images before it writes
        process.stdin.close()
    process.stdin = None
    return process


def _answer(process: subprocess.Popen[bytes], shape: tuple[int, ...]) -> np.ndarray:
    assert process.stdout is not None
    size = int(np.prod(shape))
    content = process.stdout.read(size)
    if len(content) < size:
        stderr = process.communicate()[1].decode(errors="replace")[-200:]
        raise Error(f"A process that computes superpixels failed with {process.returncode}: {stderr!r}.")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _cache_folder() -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return expanded(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "conserva"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "conserva" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "conserva"


def _key(md5: str) -> str:
    """Return the cache key of maps: the hash of the images, and the settings and version of the computation."""
    segments = _segments()
    made = f"{segments.REGIONS} regions, compactness {segments.COMPACTNESS}, scikit-image {version('scikit-image')}"
    return f"conserva superpixels {_VERSION}: {made}, images {md5}"


def _read(path: Path, key: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows in the cache and their maps; none if the file is damaged or has another key."""
    none = np.zeros(0, np.int64), np.zeros((0, 28, 28), np.uint8)
    try:
        with np.load(path, allow_pickle=False) as file:
            stored, rows, maps = str(file["key"]), file["rows"], file["maps"]
    # A damaged file raises many types of exceptions; np.load even accepts a single array under this name.
    except Exception:
        return none
    valid = maps.shape == (len(rows), 28, 28) and maps.dtype == np.uint8 and rows.dtype.kind == "i" and rows.ndim == 1
    if stored != key or not valid or not np.isin(rows, np.arange(count)).all() or len(np.unique(rows)) < len(rows):
        return none
    return rows, maps


def _check_writable(folder: Path) -> None:
    """Raise an `Error` if a folder is not writable, before minutes are spent on the computation."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from None


def _write(path: Path, key: str, rows: np.ndarray, maps: np.ndarray) -> None:
    try:
        with atomic_file(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, key=np.array(key), rows=rows, maps=maps)
    except OSError as error:
        raise _unwritable(path.parent, error) from None


def _unwritable(folder: Path, error: OSError) -> Error:
    return Error(
        f"{str(folder)!r}, the cache of superpixels, cannot be written ({error.strerror}): give another folder with "
        f"the environment variable {CACHE_VARIABLE}."
    )
