"""MNIST as graphs of superpixels, as in Ali et al. (ICML 2022).

The graphs of Monti et al. (CVPR 2017) are published, but not how they were made: these have as many nodes, and are not
the same. Superpixels are found once and kept, since they take minutes; graphs are made of them in no time.
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
"""The environment variable that names the folder where superpixels are kept."""

NODE_FEATURES = 3
"""Mean intensity, from 0 to 1, then the centre's y and x, from -1 to 1."""

NEAREST = 8
"""The neighbours of a node under edges="nearest"."""

SAVED_EVERY = 10_000
"""So many new images at most are lost if the process is ended."""

WORTH_SHARING = 1_000
"""From so many images on other processes help: they take a second to start."""

_VERSION = 1  # of the file, and of how superpixels are made: with another one they are made anew
_AT_ONCE = 100


def superpixels(image: np.ndarray, label: int | None = None, name: str = "image", *, edges: str = "adjacent") -> Graph:
    """Return the graph of an image's superpixels; the regions of its `picture` say to which each pixel belongs.

    Parameters
    ----------
    image
        28 x 28, bytes or numbers from 0 to 1, the background 0.
    edges
        "adjacent" joins superpixels that share a border; "nearest" each with the eight whose centres are nearest.
    """
    given = np.asarray(image)
    if given.shape != (28, 28) or (given.dtype != np.uint8 and given.dtype.kind != "f"):
        raise Error(f"image has the shape {given.shape} in {given.dtype}: give 28 x 28 bytes, or numbers from 0 to 1.")
    values = given / 255 if given.dtype == np.uint8 else given.astype(np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise Error(f"image goes from {values.min()} to {values.max()}: give bytes, or numbers from 0 to 1.")
    _check_kind(edges)
    bytes_of = given if given.dtype == np.uint8 else np.rint(values * 255).astype(np.uint8)
    return _graph(values, bytes_of, _segments().segmented(values), label, name, edges)


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

    Superpixels are kept in the platform's folder for caches, or in the one that CONSERVA_CACHE names.

    Parameters
    ----------
    split
        train (55,000 images), validation (5,000, held out of the published train) or test (10,000).
    count
        How many, drawn at random with `seed`, in the order of the file; all for None.
    folder
        The folder that holds "mnist/"; the one that CONSERVA_DATA names, if left out.
    progress
        Called with the number of images done and of all, while superpixels are found.
    """
    if count is not None and count < 1:
        raise Error(f"count={count} takes no image: give 1 or more, or None for all.")
    _check_kind(edges)
    file, images, labels, rows = mnist.read(split, folder)
    if count is not None and count < len(rows):
        rows = np.array(sorted(Random(seed).sample(rows.tolist(), count)))
    maps = _kept_maps(file, images, rows, progress)
    return [
        _graph(images[row] / 255, images[row], found, int(labels[row]), f"{file} {row}", edges)
        for row, found in zip(rows.tolist(), maps, strict=True)
    ]


def blank(graph: Graph, kept: np.ndarray | list[int]) -> Graph:
    """Return a graph of superpixels in which those not kept are black: they keep their places and their edges."""
    if graph.nodes.dtype.kind != "f" or graph.nodes.shape[1] != NODE_FEATURES:
        raise Error(
            f"The graph {graph.name!r} has nodes x features {graph.nodes.shape} in {graph.nodes.dtype}: "
            f"only superpixels, with {NODE_FEATURES} numbers each, can be made black."
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
    joined = _nearest(nodes[:, 1:]) if edges == "nearest" else _segments().neighbours(labels)
    picture = {"kind": "superpixels", "image": image, "regions": labels}
    return Graph(nodes, np.stack(np.nonzero(joined)), None, label, name, picture=picture)


def _check_kind(edges: str) -> None:
    if edges not in ("adjacent", "nearest"):
        raise Error(f'edges={edges!r} is unknown: give "adjacent" or "nearest".')


def _nearest(centres: np.ndarray) -> np.ndarray:
    """Return which nodes are joined: one is among the nearest of the other. Of those as near the first ones count."""
    far = ((centres[:, None] - centres) ** 2).sum(2).round(9)
    np.fill_diagonal(far, np.inf)
    joined = np.zeros(far.shape, bool)
    np.put_along_axis(joined, np.argsort(far, 1, kind="stable")[:, :NEAREST], True, 1)
    np.fill_diagonal(joined, False)  # with fewer nodes than that
    found: np.ndarray = joined | joined.T
    return found


# Maps of superpixels, and the file that keeps them.


def _kept_maps(
    file: str, images: np.ndarray, rows: np.ndarray, progress: Callable[[int, int], None] | None
) -> np.ndarray:
    """Return the maps of some rows; those that were not kept are made, and kept from now on."""
    path = _cache_folder() / f"mnist-{file}-superpixels.npz"
    key = _key(mnist.IMAGES[file].md5)
    known, maps = _read(path, key, len(images))
    place = np.full(len(images), -1)
    place[known] = np.arange(len(known))
    missing = rows[place[rows] < 0]
    place[missing] = np.arange(len(known), len(known) + len(missing))
    if len(missing):
        _check_writable(path.parent)
        done, unsaved = 0, 0
        parts = [maps]
        try:
            for made in _made(images[missing]):
                parts.append(made)
                done, unsaved = done + len(made), unsaved + len(made)
                if progress is not None:
                    progress(done, len(missing))
                if unsaved >= SAVED_EVERY and done < len(missing):
                    _write(path, key, np.concatenate([known, missing[:done]]), np.concatenate(parts))
                    unsaved = 0
        finally:  # what was made before an interruption is not lost
            maps = np.concatenate(parts)
            if unsaved:
                _write(path, key, np.concatenate([known, missing[:done]]), maps)
    found: np.ndarray = maps[place[rows]]
    return found


def _made(images: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the maps of images in their order, some at a time; several processes share the work where that helps."""
    count = cores()
    blocks = [images[start : start + _AT_ONCE] for start in range(0, len(images), _AT_ONCE)]
    if count == 1 or len(images) < WORTH_SHARING:
        segmented = _segments().segmented
        for block in blocks:
            yield np.stack([segmented(image / 255) for image in block])
        return
    running = [_started(np.concatenate(blocks[core::count])) for core in range(min(count, len(blocks)))]
    try:
        for number, block in enumerate(blocks):  # each process has every so manyth block
            yield _answer(running[number % count], block.shape)
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _started(images: np.ndarray) -> subprocess.Popen[bytes]:
    """Start a process with its images. SLIC holds Python's lock, so threads would not share the work."""
    program = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("segments.py"))]
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it ended at once, and `_answer` says why
        process.stdin.write(images.tobytes())  # it reads all of them before it writes
        process.stdin.close()
    process.stdin = None
    return process


def _answer(process: subprocess.Popen[bytes], shape: tuple[int, ...]) -> np.ndarray:
    assert process.stdout is not None
    size = int(np.prod(shape))
    content = process.stdout.read(size)
    if len(content) < size:
        said = process.communicate()[1].decode(errors="replace")[-200:]
        raise Error(f"The search for superpixels ended with {process.returncode}: {said!r}.")
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
    """Return what must be equal for maps to be the same: the images, and how superpixels are made of them."""
    segments = _segments()
    made = f"{segments.REGIONS} regions, compactness {segments.COMPACTNESS}, scikit-image {version('scikit-image')}"
    return f"conserva superpixels {_VERSION}: {made}, images {md5}"


def _read(path: Path, key: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows whose maps are kept, and the maps; none from a file that is damaged, or of another making."""
    none = np.zeros(0, np.int64), np.zeros((0, 28, 28), np.uint8)
    try:
        with np.load(path, allow_pickle=False) as file:
            found, rows, maps = str(file["key"]), file["rows"], file["maps"]
    # A file that is not such an archive raises many kinds of errors: numpy even opens a single array under this name.
    except Exception:
        return none
    whole = maps.shape == (len(rows), 28, 28) and maps.dtype == np.uint8 and rows.dtype.kind == "i" and rows.ndim == 1
    if found != key or not whole or not np.isin(rows, np.arange(count)).all() or len(np.unique(rows)) < len(rows):
        return none
    return rows, maps


def _check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written before minutes are spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from None


def _write(path: Path, key: str, rows: np.ndarray, maps: np.ndarray) -> None:
    try:
        with atomic_file(path) as half, half.open("wb") as file:
            np.savez_compressed(file, key=np.array(key), rows=rows, maps=maps)
    except OSError as error:
        raise _unwritable(path.parent, error) from None


def _unwritable(folder: Path, error: OSError) -> Error:
    return Error(
        f"{str(folder)!r}, where superpixels are kept, cannot be written ({error.strerror}): name another folder with "
        f"the environment variable {CACHE_VARIABLE}."
    )
