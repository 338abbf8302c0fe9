"""Many masked inputs as one stream of batches: each evaluated once, equal lengths together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ..errors import Error
from ..operations.live import in_float32
from ..tasks.text import Text

Row = Mapping[str, np.ndarray]
"""One input as the model sees it: its ids, its attention mask."""

ON_CPU, ON_GPU = 2048, 65536
"""Tokens in a batch. On a CPU small batches stay in its caches; on a GPU large ones fill it."""


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

    def logits(self, rows: Sequence[Row]) -> np.ndarray:
        """Return the logits of every row: equal rows are evaluated once."""
        numbers: dict[bytes, int] = {}
        places = [numbers.setdefault(_key(row), len(numbers)) for row in rows]
        unique: list[Row] = [{}] * len(numbers)
        for row, place in zip(rows, places, strict=True):
            unique[place] = row
        order = sorted(range(len(unique)), key=lambda i: len(unique[i]["input_ids"]))
        found: dict[int, np.ndarray] = {}
        start = 0
        while start < len(order):
            end = start + max(1, self.tokens // len(unique[order[start]]["input_ids"]))
            while (
                end > start + 1
                and (end - start) * len(unique[order[min(end, len(order)) - 1]]["input_ids"]) > self.tokens
            ):
                end -= 1
            part = order[start:end]
            values = self._run([unique[i] for i in part])
            if values is None:
                continue  # the batch was too large: it is made again, smaller
            found.update(zip(part, values, strict=True))
            start += len(part)
        self.asked += len(rows)
        self.evaluated += len(unique)
        return np.array([found[place] for place in places])

    def _run(self, rows: list[Row]) -> np.ndarray | None:
        """Return the logits of one batch, or None if it did not fit and the next shall be half as large."""
        try:
            with torch.inference_mode():
                output = self.task.model(**self.task.stack(rows))
                logits = getattr(output, "logits", output)
                return in_float32(logits).cpu().numpy()
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            if len(rows) == 1:
                raise Error(f"One input of {len(rows[0]['input_ids'])} tokens does not fit into memory.") from None
        self.tokens = max(1, min(self.tokens, sum(len(row["input_ids"]) for row in rows)) // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None


def _key(row: Row) -> bytes:
    return b"|".join(row[name].tobytes() for name in sorted(row))


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return "out of memory" in str(error) or "can't allocate memory" in str(error)
