"""The data of an evaluation: inputs as the model sees them, with the classes that are watched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..datasets import Labelled, class_indices
from ..errors import Error
from ..tasks.task import Encoded, Task
from .protocol import Protocol


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


def encode(task: Task, data: Labelled, classes: int, truncate: bool) -> list[Sample]:
    """Return every input as the model sees it; one that cannot be used is named."""
    labels = None if data.labels is None else class_indices(data.labels, task.labels, classes)
    samples = []
    for number, text in enumerate(data.texts):
        try:
            encoded = task.encode(text, truncate=truncate)
        except Error as error:
            raise Error(f"Sample {number + 1} of {data.source}: {error}") from None
        samples.append(Sample(number, encoded, None if labels is None else labels[number]))
    return samples


def fingerprint(samples: Sequence[Sample]) -> str:
    """Return a hash of what is evaluated."""
    found = hashlib.sha256()
    for one in samples:
        found.update(f"{one.encoded.key} {one.label}\n".encode())
    return found.hexdigest()[:16]
