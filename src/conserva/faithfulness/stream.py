"""Many masked inputs as one stream of batches: each evaluated once, equal lengths together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch

from ..errors import Error
from ..operations.live import in_float32
from ..tasks.text import Text

Part: TypeAlias = Mapping[str, np.ndarray]
"""Inputs of one length as the model sees them: ids and attention mask, rows x tokens."""

ON_CPU, ON_GPU = 2048, 65536
"""Tokens in a batch. On a CPU small batches stay in its caches; on a GPU large ones fill it."""


NAMES = ("input_ids", "attention_mask")


class Stream:
    """Runs rows through a task's model, in batches that shrink when memory runs out."""

    def __init__(self, task: Text, tokens: int | None = None) -> None:
        if tokens is not None and tokens < 1:
            raise Error(f"tokens={tokens}: a batch needs one or more.")
        device = next(task.model.parameters()).device
        self.task = task
        self.tokens = tokens or (ON_CPU if device.type == "cpu" else ON_GPU)
        self.asked = 0
        self.evaluated = 0

    def logits(self, parts: Sequence[Part]) -> list[np.ndarray]:
        """Return the logits of every row of every part: equal rows are evaluated once, in batches of like lengths."""
        widths: dict[int, list[int]] = {}
        for i, part in enumerate(parts):
            widths.setdefault(part["input_ids"].shape[1], []).append(i)
        unique: list[Part] = []
        places: list[tuple[list[int], np.ndarray]] = []
        for width in sorted(widths):
            whole = {name: np.concatenate([parts[i][name] for i in widths[width]]) for name in NAMES}
            first, inverse = _distinct(whole)
            unique.append({name: values[first] for name, values in whole.items()})
            places.append((widths[width], inverse))
        found = self._evaluated(unique)
        results: list[np.ndarray] = [np.empty(0)] * len(parts)
        for (numbers, inverse), values in zip(places, found, strict=True):
            ends = np.cumsum([len(parts[i]["input_ids"]) for i in numbers])
            for i, rows in zip(numbers, np.split(values[inverse], ends[:-1]), strict=True):
                results[i] = rows
        self.asked += sum(len(part["input_ids"]) for part in parts)
        self.evaluated += sum(len(part["input_ids"]) for part in unique)
        return results

    def _evaluated(self, unique: Sequence[Part]) -> list[np.ndarray]:
        """Return the logits of distinct rows, given in the order of their length."""
        sizes = [part["input_ids"].shape for part in unique]
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

    def _run(self, parts: Sequence[Part]) -> np.ndarray | None:
        """Return the logits of one batch, or None if it did not fit and the next shall be half as large."""
        try:
            with torch.inference_mode():
                output = self.task.model(**self.task.stack(parts))
                logits = getattr(output, "logits", output)
                return in_float32(logits).cpu().numpy()
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            size = sum(part["input_ids"].size for part in parts)
            if sum(len(part["input_ids"]) for part in parts) == 1:
                raise Error(f"One input of {size} tokens does not fit into memory.") from None
        self.tokens = max(1, min(self.tokens, size) // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None


def _distinct(whole: Part) -> tuple[np.ndarray, np.ndarray]:
    """Return one row number for each distinct row, and for each row which of them it equals."""
    joint = np.ascontiguousarray(np.concatenate([whole[name] for name in NAMES], axis=1))
    rows = joint.view(np.dtype((np.void, joint.dtype.itemsize * joint.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def _slices(parts: Sequence[Part], rows: Sequence[tuple[int, int]]) -> list[Part]:
    """Return consecutive rows of parts, part by part."""
    found: list[Part] = []
    for i, group in itertools.groupby(rows, key=lambda one: one[0]):
        numbers = [row for _, row in group]
        where = slice(numbers[0], numbers[-1] + 1)
        found.append({name: values[where] for name, values in parts[i].items()})
    return found


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on whatever device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return "out of memory" in str(error) or "can't allocate memory" in str(error)
