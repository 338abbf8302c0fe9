"""The data of an evaluation: inputs as the model sees them, with the classes that are watched."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..datasets import Labelled, class_indices
from ..errors import Error
from ..tasks.task import Encoded, Task
from .protocol import Protocol

KEPT = 2048
"""How many samples are kept as the model sees them; others are encoded again when they are needed."""

_AT_ONCE = 256


@dataclass(frozen=True)
class Sample:
    """One input of the data, by its number there."""

    number: int
    encoded: Encoded
    label: int | None

    def maskable(self, protocol: Protocol) -> np.ndarray:
        """Return which features may be taken away."""
        fixed = np.array(self.encoded.fixed)
        return ~(fixed if protocol.special else fixed | np.array(self.encoded.special))

    def describe(self) -> str:
        """Name the sample in a message."""
        return f"Sample {self.number + 1} ({self.encoded.text[:40]!r})"


class Samples:
    """All samples of the data: each is encoded once at first, to check it, and later when it is its turn."""

    def __init__(self, task: Task, data: Labelled, classes: int, truncate: bool) -> None:
        self._task, self._data, self._truncate = task, data, truncate
        self.labels = None if data.labels is None else class_indices(data.labels, task.labels, classes)
        self.lengths = array("l")
        self._kept: list[Encoded] = []
        controls: set[str] | None = None
        digest = hashlib.sha256()
        for start in range(0, len(data), _AT_ONCE):
            for one in self._checked(start, data.texts[start : start + _AT_ONCE]):
                digest.update(f"{one.key} {self._label(len(self.lengths))}\n".encode())
                self.lengths.append(len(one))
                controls = set(one.controls()) if controls is None else controls & set(one.controls())
                if len(self._kept) < KEPT:
                    self._kept.append(one)
        self.controls = frozenset(controls or ())
        """The yardsticks that all samples have: one that not every sample has would be measured on others."""
        self.fingerprint = digest.hexdigest()[:16]
        """A hash of what is evaluated."""

    def __len__(self) -> int:
        return len(self._data)

    def _label(self, number: int) -> int | None:
        return None if self.labels is None else self.labels[number]

    def _checked(self, start: int, texts: Sequence[Any]) -> list[Encoded]:
        """Return inputs as the model sees them; one that cannot be used is named."""
        try:
            return self._task.encode_all(texts, truncate=self._truncate)
        except Error:
            for number, text in enumerate(texts, start + 1):
                try:
                    self._task.encode(text, truncate=self._truncate)
                except Error as error:
                    raise Error(f"Sample {number} of {self._data.source}: {error}") from None
            raise

    def some(self, numbers: Sequence[int]) -> list[Sample]:
        """Return some samples."""
        wanted = [number for number in numbers if number >= len(self._kept)]
        again = self._task.encode_all([self._data.texts[number] for number in wanted], truncate=self._truncate)
        found = dict(zip(wanted, again, strict=True))
        return [
            Sample(number, found[number] if number in found else self._kept[number], self._label(number))
            for number in numbers
        ]
