"""Many masked inputs as one stream of batches: each evaluated once, equal lengths together."""

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
"""Tokens in a batch. On a CPU small batches stay in its caches; on a GPU large ones fill it."""


class Stream:
    """Runs rows through a task's model, in batches that shrink when memory runs out."""

    def __init__(self, task: Task, tokens: int | None = None) -> None:
        if tokens is not None and tokens < 1:
            raise Error(f"tokens={tokens}: a batch needs one or more.")
        device = next(task.model.parameters()).device
        self.task = task
        self.tokens = tokens or (ON_CPU if device.type == "cpu" else ON_GPU)
        self.asked = 0
        self.evaluated = 0

    def logits(self, parts: Sequence[Rows]) -> list[np.ndarray]:
        """Return the logits of every row of every part: equal rows are evaluated once, in batches of like lengths."""
        widths: dict[int, list[int]] = {}
        for i, part in enumerate(parts):
            widths.setdefault(part.width, []).append(i)
        unique: list[Rows] = []
        places: list[tuple[list[int], np.ndarray]] = []
        for width in sorted(widths):
            numbers = widths[width]
            first, inverse = _distinct(np.concatenate([parts[i].keys() for i in numbers]))
            starts = np.cumsum([0, *(len(parts[i]) for i in numbers)])
            for i, start, end in zip(numbers, starts, starts[1:], strict=False):
                unique.append(parts[i][first[(first >= start) & (first < end)] - start])
            places.append((numbers, inverse))
        found = self._evaluated(unique)
        results: dict[int, np.ndarray] = {}
        done = 0
        for numbers, inverse in places:
            values = np.concatenate(found[done : done + len(numbers)])[inverse]
            done += len(numbers)
            ends = np.cumsum([len(parts[i]) for i in numbers])
            results.update(zip(numbers, np.split(values, ends[:-1]), strict=True))
        self.asked += sum(map(len, parts))
        self.evaluated += sum(map(len, unique))
        return [results[i] for i in range(len(parts))]

    def _evaluated(self, unique: Sequence[Rows]) -> list[np.ndarray]:
        """Return the logits of distinct rows, given in the order of their length."""
        sizes = [(len(part), part.width) for part in unique]
        order = [(i, row) for i, (rows, _) in enumerate(sizes) for row in range(rows)]
        found: list[np.ndarray] = []
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * sizes[order[end][0]][1] <= self.tokens:
                end += 1
            slices = _slices(unique, order[start:end])
            values = self._run(slices)
            if values is not None:  # else the batch was too large: it is made again, smaller
                found.append(values)
                start = end
        return np.split(np.concatenate(found), np.cumsum([rows for rows, _ in sizes])[:-1])

    def _run(self, parts: Sequence[Rows]) -> np.ndarray | None:
        """Return the logits of one batch, or None if it did not fit and the next shall be half as large."""
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
                raise Error(f"One input of {size} tokens does not fit into memory.") from None
        self.tokens = max(1, min(self.tokens, size) // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None


def _distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each distinct kind in their order, and for each row which of them it equals."""
    rows = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[inverse.reshape(-1)]


def _slices(parts: Sequence[Rows], rows: Sequence[tuple[int, int]]) -> list[Rows]:
    """Return consecutive rows of parts, part by part."""
    found: list[Rows] = []
    for i, group in itertools.groupby(rows, key=lambda one: one[0]):
        numbers = [row for _, row in group]
        found.append(parts[i][numbers[0] : numbers[-1] + 1])
    return found
