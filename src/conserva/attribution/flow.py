"""Attention flow (Abnar & Zuidema 2020): maximum flow in a network whose capacities are attention probabilities."""

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
"""The layers of one sample, and the sources: the tokens from which flows are computed."""

SECONDS_A_CAPACITY = 1e-7
"""The approximate time of a search for each edge of the graph: igraph copies all edges for every pair."""
WORTH_SHARING = 4.0
"""The estimated search time in seconds from which several processes are used; starting one takes some tenths."""


def attention_flow(layers: Sequence[np.ndarray] | np.ndarray, sources: Sequence[int]) -> np.ndarray:
    """Return the maximum flow from each source to every input token, sources x tokens.

    Parameters
    ----------
    layers
        A square matrix for each layer, from the lowest to the top: row i has the capacities of query i.
    sources
        Tokens of the top layer's output.
    """
    return attention_flows([layers], [sources])[0]


def attention_flows(
    samples: Sequence[Sequence[np.ndarray] | np.ndarray], sources: Sequence[Sequence[int]]
) -> list[np.ndarray]:
    """Return the flows of several samples, each with its own sources; long searches run on all cores."""
    jobs = []
    for layers, wanted in zip(samples, sources, strict=True):
        matrices = _checked_layers(layers)
        jobs.append((matrices, _checked_sources(wanted, len(matrices[0]))))
    searched = iter(_searched([job for job in jobs if len(job[0]) > 2]))
    return [next(searched) if len(matrices) > 2 else _closed_form(matrices, wanted) for matrices, wanted in jobs]


def _closed_form(matrices: list[np.ndarray], sources: list[int]) -> np.ndarray:
    """Return the flows through one or two layers, for which there is a closed form."""
    if len(matrices) == 1:
        return matrices[0][sources]
    bottom, top = matrices
    # Paths of two edges share no edge: the flow of each is the smaller of its two capacities.
    return np.array([np.minimum(top[s][:, None], bottom).sum(0) for s in sources]).reshape(len(sources), len(top))


def _searched(jobs: list[Job]) -> list[np.ndarray]:
    """Return the flows through three or more layers, searched in this process or in several."""
    if jobs and find_spec("igraph") is None:
        raise NotApplicable("a-flow through three or more layers needs igraph: pip install 'conserva[flow]'.")
    count = cores()
    seconds = [len(s) * len(m[0]) * (len(m) - 2) * m[0].size * SECONDS_A_CAPACITY for m, s in jobs]
    if count == 1 or sum(seconds) < WORTH_SHARING:
        from .maxflow import searched_flow

        return [searched_flow(matrices, sources) for matrices, sources in jobs]
    units = [(i, source) for i, (_, sources) in enumerate(jobs) for source in sources]
    parts = [_grouped(units[core::count]) for core in range(min(count, len(units)))]
    running = [_started([(jobs[i][0], sources) for i, sources in part.items()]) for part in parts]
    try:
        answers = [pickle.loads(_answer(process)) for process in running]
    finally:
        for process in running:
            process.kill()
    flows = [np.zeros((len(sources), len(matrices[0]))) for matrices, sources in jobs]
    for part, part_flows in zip(parts, answers, strict=True):
        for (i, sources), flow in zip(part.items(), part_flows, strict=True):
            flows[i][[jobs[i][1].index(source) for source in sources]] = flow
    return flows


def _grouped(units: list[tuple[int, int]]) -> dict[int, list[int]]:
    """Return the sources grouped by job, so that a process builds a sample's graph once."""
    grouped: dict[int, list[int]] = {}
    for i, source in units:
        grouped.setdefault(i, []).append(source)
    return grouped


def _started(jobs: list[Job]) -> subprocess.Popen[bytes]:
    """Start a process with its jobs. Threads would not run in parallel, because igraph holds the GIL."""
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
        raise Error(
            f"The process that searches attention flows failed with exit code {process.returncode}: "
            f"{err.decode(errors='replace')[-200:]!r}."
        )
    return out


def _checked_layers(layers: Sequence[np.ndarray] | np.ndarray) -> list[np.ndarray]:
    """Return the layers as float64; raise if they are not valid capacities."""
    matrices = [np.asarray(layer, dtype=np.float64) for layer in layers]
    if not matrices:
        raise Error("layers is empty: attention flow needs the attention of at least one layer.")
    tokens = len(matrices[0]) if matrices[0].ndim else 0
    for k, matrix in enumerate(matrices):
        if matrix.shape != (tokens, tokens):
            shapes = ", ".join(str(each.shape) for each in matrices)
            raise Error(f"layers have the shapes {shapes}: attention flow needs square matrices of the same shape.")
        if not np.isfinite(matrix).all() or (matrix < 0).any():
            i, j = np.argwhere(~np.isfinite(matrix) | (matrix < 0))[0]
            raise Error(f"layers[{k}][{i}, {j}] is {matrix[i, j]}: capacities must be finite and not negative.")
    return matrices


def _checked_sources(sources: Sequence[int], tokens: int) -> list[int]:
    """Return the sources as plain integers; raise if one is not the index of a token."""
    for s in sources:
        if isinstance(s, bool) or not isinstance(s, (int, np.integer)) or not 0 <= s < tokens:
            raise Error(f"sources={list(sources)!r}: {s!r} is not the index of a token; these are 0 to {tokens - 1}.")
    return [int(s) for s in sources]
