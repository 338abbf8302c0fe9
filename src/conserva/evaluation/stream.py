"""Evaluation of many masked inputs in batches of similar length, without duplicates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from ..engine.memory import out_of_memory
from ..engine.operations.tensors import in_float32
from ..engine.untouched import untouched
from ..errors import Error
from ..tasks.task import Rows, Task

ON_CPU, ON_GPU = 2048, 65536
"""Default number of tokens in a batch: small enough for the caches of a CPU, large enough to fill a GPU."""


class Stream:
    """Calls a task's model on masked inputs, in batches that become smaller when memory runs out."""

    def __init__(self, task: Task, tokens: int | None = None) -> None:
        if tokens is not None and tokens < 1:
            raise Error(f"tokens={tokens} is too small: give 1 or more.")
        device = next(task.model.parameters()).device
        self.task = task
        self.tokens = tokens or (ON_CPU if device.type == "cpu" else ON_GPU)
        self.asked = 0
        self.evaluated = 0

    def logits(self, parts: Sequence[Rows]) -> list[np.ndarray]:
        """Return the logits of all rows of each part; equal rows are evaluated once."""
        widths: dict[int, list[int]] = {}
        for i, part in enumerate(parts):
            widths.setdefault(part.width, []).append(i)
        unique: list[Rows] = []
        inverses: list[tuple[list[int], np.ndarray]] = []
        for width in sorted(widths):
            numbers = widths[width]
            first, inverse = _distinct(np.concatenate([parts[i].keys() for i in numbers]))
            starts = np.cumsum([0, *(len(parts[i]) for i in numbers)])
            for i, start, end in zip(numbers, starts, starts[1:], strict=False):
                unique.append(parts[i][first[(first >= start) & (first < end)] - start])
            inverses.append((numbers, inverse))
        logits = self._evaluated(unique)
        results: dict[int, np.ndarray] = {}
        done = 0
        for numbers, inverse in inverses:
            values = np.concatenate(logits[done : done + len(numbers)])[inverse]
            done += len(numbers)
            ends = np.cumsum([len(parts[i]) for i in numbers])
            results.update(zip(numbers, np.split(values, ends[:-1]), strict=True))
        self.asked += sum(map(len, parts))
        self.evaluated += sum(map(len, unique))
        return [results[i] for i in range(len(parts))]

    def _evaluated(self, unique: Sequence[Rows]) -> list[np.ndarray]:
        """Return the logits of distinct rows, which are given in the order of their length."""
        sizes = [(len(part), part.width) for part in unique]
        order = [(i, row) for i, (rows, _) in enumerate(sizes) for row in range(rows)]
        logits: list[np.ndarray] = []
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * sizes[order[end][0]][1] <= self.tokens:
                end += 1
            slices = _slices(unique, order[start:end])
            values = self._run(slices)
            if values is not None:  # otherwise try again with a smaller batch
                logits.append(values)
                start = end
        return np.split(np.concatenate(logits), np.cumsum([rows for rows, _ in sizes])[:-1])

    def _run(self, parts: Sequence[Rows]) -> np.ndarray | None:
        """Return the logits of a batch; if it does not fit into memory, halve the batch size and return None."""
        try:
            with untouched(self.task.model), torch.inference_mode():
                output = self.task.model(**self.task.stack(parts))
                logits = getattr(output, "logits", output)
                return in_float32(logits).cpu().numpy()
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            size = sum(len(part) * part.width for part in parts)
            if sum(map(len, parts)) == 1:
                raise Error(f"A single input of {size} tokens does not fit into memory.") from None
        self.tokens = max(1, min(self.tokens, size) // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None


def _distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the first of each set of equal rows, in order, and for each row the number of its set."""
    rows = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[inverse.reshape(-1)]


def _slices(parts: Sequence[Rows], rows: Sequence[tuple[int, int]]) -> list[Rows]:
    """Return the given (part, row) pairs, which are consecutive, as slices of parts."""
    slices: list[Rows] = []
    for i, group in itertools.groupby(rows, key=lambda pair: pair[0]):
        numbers = [row for _, row in group]
        slices.append(parts[i][numbers[0] : numbers[-1] + 1])
    return slices
