"""The data of an evaluation: texts as the model sees them, with the classes that are watched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..datasets import Labelled, class_indices, read_labelled
from ..errors import Error
from ..tasks.text import Encoded, Text
from .protocol import Protocol


@dataclass(frozen=True)
class Sample:
    """One text of the data, by its number there."""

    number: int
    encoded: Encoded
    label: int | None

    def maskable(self, protocol: Protocol) -> np.ndarray:
        """Return which tokens may be taken away."""
        return np.ones(len(self.encoded), dtype=bool) if protocol.special else ~np.array(self.encoded.special)

    def describe(self) -> str:
        """Name the sample in a message."""
        return f"Sample {self.number + 1} ({self.encoded.text[:40]!r})"


def as_labelled(data: object) -> Labelled:
    """Return the data, whatever it was given as: a file or dataset name, texts, or pairs of text and label."""
    if isinstance(data, Labelled):
        return data
    if isinstance(data, (str, Path)):
        return read_labelled(data)
    if not isinstance(data, Sequence) or not data:
        raise Error(f"data={data!r} holds no texts: give a file, a list of texts, or a list of (text, label).")
    if all(isinstance(one, str) for one in data):
        return Labelled(tuple(data), None, "texts")
    if all(isinstance(one, (tuple, list)) and len(one) == 2 for one in data):
        return Labelled(tuple(text for text, _ in data), tuple(label for _, label in data), "texts")
    raise Error("data is neither a list of texts nor a list of (text, label): its entries differ.")


def encode(task: Text, data: Labelled, classes: int, truncate: bool) -> list[Sample]:
    """Return every text as the model sees it; one that cannot be used is named."""
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
        found.update(f"{one.encoded.ids} {one.label}\n".encode())
    return found.hexdigest()[:16]
