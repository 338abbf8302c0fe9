"""Attention flow (Abnar & Zuidema 2020): attention as pipes, and the most that runs from a token down to an input."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import numpy as np

from .._util.cores import cores
from ..errors import Error, NotApplicable

Job: TypeAlias = tuple[list[np.ndarray], list[int]]
"""The layers of one sample, and the tokens whose flows are asked for."""

SECONDS_A_CAPACITY = 1e-7
"""What a search costs for each edge of the graph, roughly: igraph copies them all for every pair."""
WORTH_SHARING = 4.0
"""Seconds of search from which on further processes are started; starting one takes some tenths."""


def attention_flow(layers: Sequence[np.ndarray] | np.ndarray, sources: Sequence[int]) -> np.ndarray:
    """Return the maximum flow from each source, a token above the top layer, to every input token: (sources, tokens).

    The layers are square, ordered from the input to the top: row i holds the capacities of what query i takes.
    """
    return attention_flows([layers], [sources])[0]


def attention_flows(
    samples: Sequence[Sequence[np.ndarray] | np.ndarray], sources: Sequence[Sequence[int]]
) -> list[np.ndarray]:
    """Return the flows of many samples, each with its own sources; long searches run on all cores."""
    jobs = []
    for layers, wanted in zip(samples, sources, strict=True):
        matrices = _checked_layers(layers)
        jobs.append((matrices, _checked_sources(wanted, len(matrices[0]))))
    searched = iter(_searched([job for job in jobs if len(job[0]) > 2]))
    return [next(searched) if len(matrices) > 2 else _closed(matrices, wanted) for matrices, wanted in jobs]


def _closed(matrices: list[np.ndarray], sources: list[int]) -> np.ndarray:
    """Return the flows through one layer or two, for which there is a closed form."""
    if len(matrices) == 1:
        return matrices[0][sources]
    bottom, top = matrices
    # Paths of two edges share no edge: each carries what its narrower edge lets through.
    return np.array([np.minimum(top[s][:, None], bottom).sum(0) for s in sources]).reshape(len(sources), len(top))


def _searched(jobs: list[Job]) -> list[np.ndarray]:
    """Return the flows through three layers or more, searched for here or by several processes."""
    if jobs and find_spec("igraph") is None:
        raise NotApplicable("a-flow through three layers or more needs igraph: pip install 'conserva[flow]'.")
    count = cores()
    seconds = [len(s) * len(m[0]) * (len(m) - 2) * m[0].size * SECONDS_A_CAPACITY for m, s in jobs]
    if count == 1 or sum(seconds) < WORTH_SHARING:
        from .maxflow import searched_flow

        return [searched_flow(matrices, sources) for matrices, sources in jobs]
    units = [(i, source) for i, (_, sources) in enumerate(jobs) for source in sources]
    parts = [_grouped(units[core::count]) for core in range(min(count, len(units)))]
    running = [_started([(jobs[i][0], sources) for i, sources in part.items()]) for part in parts]
    try:
        found = [pickle.loads(_answer(process)) for process in running]
    finally:
        for process in running:
            process.kill()
    flows = [np.zeros((len(sources), len(matrices[0]))) for matrices, sources in jobs]
    for part, answers in zip(parts, found, strict=True):
        for (i, sources), answer in zip(part.items(), answers, strict=True):
            flows[i][[jobs[i][1].index(source) for source in sources]] = answer
    return flows


def _grouped(units: list[tuple[int, int]]) -> dict[int, list[int]]:
    """Return the sources of each job, so that a process builds a sample's graph once."""
    found: dict[int, list[int]] = {}
    for i, source in units:
        found.setdefault(i, []).append(source)
    return found


def _started(jobs: list[Job]) -> subprocess.Popen[bytes]:
    """Start a process with its jobs. igraph holds Python's lock, so threads would not share the work."""
    program = [sys.executable, str(Path(__file__).with_name("maxflow.py"))]
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    pickle.dump(jobs, process.stdin)
    process.stdin.close()
    process.stdin = None
    return process


def _answer(process: subprocess.Popen[bytes]) -> bytes:
    out, err = process.communicate()
    if process.returncode:
        raise Error(f"The search for flows ended with {process.returncode}: {err.decode(errors='replace')[-200:]!r}.")
    return out


def _checked_layers(layers: Sequence[np.ndarray] | np.ndarray) -> list[np.ndarray]:
    """Return the layers as float64, or say what is wrong with them."""
    matrices = [np.asarray(layer, dtype=np.float64) for layer in layers]
    if not matrices:
        raise Error("layers is empty: attention flow needs the attention of one layer or more.")
    tokens = len(matrices[0]) if matrices[0].ndim else 0
    for k, matrix in enumerate(matrices):
        if matrix.shape != (tokens, tokens):
            shapes = ", ".join(str(one.shape) for one in matrices)
            raise Error(f"layers have the shapes {shapes}: attention flow needs one square matrix of each, all alike.")
        if not np.isfinite(matrix).all() or (matrix < 0).any():
            i, j = np.argwhere(~np.isfinite(matrix) | (matrix < 0))[0]
            raise Error(f"layers[{k}][{i}, {j}] is {matrix[i, j]}: capacities are finite, and zero or more.")
    return matrices


def _checked_sources(sources: Sequence[int], tokens: int) -> list[int]:
    """Return the sources as plain integers, or say which is not a token."""
    for s in sources:
        if isinstance(s, bool) or not isinstance(s, (int, np.integer)) or not 0 <= s < tokens:
            raise Error(f"sources={list(sources)!r}: {s!r} is not the index of a token, 0 to {tokens - 1}.")
    return [int(s) for s in sources]
