"""The data of an evaluation: encoded inputs with their labels."""

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
"""The number of encoded samples that are kept in memory; others are encoded again when they are needed."""

_AT_ONCE = 256


@dataclass(frozen=True)
class Sample:
    """One input, with its index in the data."""

    number: int
    encoded: Encoded
    label: int | None

    def maskable(self, protocol: Protocol) -> np.ndarray:
        """Return which features can be removed."""
        fixed = np.array(self.encoded.fixed)
        return ~(fixed if protocol.special else fixed | np.array(self.encoded.special))

    def describe(self) -> str:
        """Return a description of the sample for messages."""
        return f"Sample {self.number + 1} ({self.encoded.text[:40]!r})"


class Samples:
    """All samples of the data. Each is encoded once at the beginning, as a check, and again when it is used."""

    def __init__(self, task: Task, data: Labelled, classes: int, truncate: bool) -> None:
        self._task, self._data, self._truncate = task, data, truncate
        self.labels = None if data.labels is None else class_indices(data.labels, task.labels, classes)
        self.lengths = array("l")
        self._kept: list[Encoded] = []
        controls: set[str] | None = None
        digest = hashlib.sha256()
        for start in range(0, len(data), _AT_ONCE):
            for encoded in self._checked(start, data.texts[start : start + _AT_ONCE]):
                digest.update(f"{encoded.key} {self._label(len(self.lengths))}\n".encode())
                self.lengths.append(len(encoded))
                controls = set(encoded.controls()) if controls is None else controls & set(encoded.controls())
                if len(self._kept) < KEPT:
                    self._kept.append(encoded)
        self.controls = frozenset(controls or ())
        """The names of reference scores that all samples have, so that all are measured on the same samples."""
        self.fingerprint = digest.hexdigest()[:16]
        """A hash of the encoded inputs and their labels."""

    def __len__(self) -> int:
        return len(self._data)

    def _label(self, number: int) -> int | None:
        return None if self.labels is None else self.labels[number]

    def _checked(self, start: int, texts: Sequence[Any]) -> list[Encoded]:
        """Return encoded inputs; an error contains the number of the input."""
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
        """Return the samples with the given indices."""
        missing = [number for number in numbers if number >= len(self._kept)]
        again = self._task.encode_all([self._data.texts[number] for number in missing], truncate=self._truncate)
        encoded = dict(zip(missing, again, strict=True))
        return [
            Sample(number, encoded[number] if number in encoded else self._kept[number], self._label(number))
            for number in numbers
        ]
