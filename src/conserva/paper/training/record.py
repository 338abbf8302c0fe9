"""What a training leaves beside the weights, for texts and for graphs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._util.files import LARGEST_SETTINGS, read_text, write_text
from ..._util.text import to_json
from ..._util.versions import versions
from ...errors import Error
from ...results.schema import Count, Share, read

SCHEMA = "conserva/training/1"
RESULT = "training.json"


def folder_of(out: str | Path) -> Path:
    """Return the folder for a model, unless a file is in its place."""
    if Path(out).exists() and not Path(out).is_dir():
        raise Error(f"out={str(out)!r} is a file: name a folder, or what is to become one.")
    return Path(out)


def provenance(packages: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of what a classifier was trained with."""
    return versions(*packages)


@dataclass(frozen=True)
class Training:
    """What is written of a training; some of it of texts alone, or of graphs alone."""

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
    """Write what a training came to."""
    write_text(out / RESULT, to_json(result) + "\n")


def read_training(out: Path) -> dict[str, Any]:
    """Return what a finished training wrote beside the weights."""
    path = out / RESULT
    text = read_text(path, str(path), LARGEST_SETTINGS)
    read(Training, text, SCHEMA, "result of a training", str(path), "Delete it and start anew.")
    found: dict[str, Any] = json.loads(text)
    return found


def finished(out: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result that a folder holds, if it is one of the same settings."""
    if not (out / RESULT).exists():
        return None
    found = read_training(out)
    changed = [key for key, value in settings.items() if found.get(key) != value]
    if changed:
        raise Error(f"{out} holds another training: it differs in {', '.join(changed)}. Choose another folder.")
    return found
