"""The result of a training, written beside the weights."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._util.files import LARGEST_SETTINGS, read_text, write_text
from ..._util.text import to_json
from ...errors import Error
from ...results.schema import Count, Share, read

SCHEMA = "conserva/training/1"
RESULT = "training.json"


def folder_of(out: str | Path) -> Path:
    """Return the folder for a model. Raise an error if `out` is a file."""
    if Path(out).exists() and not Path(out).is_dir():
        raise Error(f"out={str(out)!r} is a file: name a folder, or what is to become one.")
    return Path(out)


@dataclass(frozen=True)
class Training:
    """The fields of the result of a training. Some are of texts only or of graphs only; older results lack some."""

    dataset: str
    seed: int
    recipe: Mapping[str, Any]
    count: Count | None
    device: str
    test_accuracy: Share
    majority: Share
    epochs: tuple[Mapping[str, Any], ...]
    weights: str
    trained_parameters: Count
    provenance: Mapping[str, str]
    best_epoch: Count | None
    validation_accuracy: Share | None
    texts: Mapping[str, Count] | None = None
    as_released: bool | None = None
    embeddings: str | None = None
    embeddings_weights: str | None = None
    embeddings_configuration: str | None = None
    tokenizer: str | None = None
    data: Mapping[str, str] | None = None
    source: Mapping[str, str] | None = None
    graphs: Mapping[str, Count] | None = None
    metric: str | None = None
    shape: Mapping[str, Any] | None = None
    kept_epoch: Count | None = None
    last_epoch: Count | None = None
    validation_loss: float | None = None
    test_loss: float | None = None
    validation_roc_auc: Share | None = None
    test_roc_auc: Share | None = None

    def _flaws(self) -> Iterator[str]:
        of_texts = ("texts", "as_released", "embeddings", "validation_accuracy", "best_epoch")
        of_graphs = ("graphs", "metric", "shape", "kept_epoch", "last_epoch")
        for name in of_texts if self.graphs is None else of_graphs:
            if getattr(self, name) is None:
                yield f"{name} is missing"


def write_training(out: Path, result: Mapping[str, Any]) -> None:
    """Write the result of a training."""
    write_text(out / RESULT, to_json(result) + "\n")


def read_training(out: Path) -> dict[str, Any]:
    """Return the result of a finished training."""
    path = out / RESULT
    text = read_text(path, str(path), LARGEST_SETTINGS)
    read(Training, text, SCHEMA, "result of a training", str(path), "Delete it and start anew.")
    found: dict[str, Any] = json.loads(text)
    return found


def finished(out: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result in a folder, or None if there is none. Raise an error if it is of other settings."""
    if not (out / RESULT).exists():
        return None
    found = read_training(out)
    if changed := differing(settings, found):
        raise Error(f"{out} holds another training: it differs in {', '.join(changed)}. Choose another folder.")
    return found


def differing(settings: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that are different in a stored training."""
    return [key for key, value in settings.items() if stored.get(key) != value]
