"""The models in the local cache of the Hugging Face Hub that there is a task for, by their configurations alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .._util.files import LARGEST_SETTINGS, read_text
from ..errors import Error
from ..models.bundled import KnownModel

_LICENCE = re.compile(r"^licen[sc]e:[ \t]*([\w.-]+)[ \t]*$", re.MULTILINE)
_SHOWN = 20


def cached_models() -> list[KnownModel]:
    """Return the models of the cache that `conserva.load` has a task for, sorted by name. No weights are read."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except (CacheNotFound, OSError, ValueError):
        return []
    found = []
    for repository in repositories:
        if repository.repo_type != "model" or not repository.revisions:
            continue
        newest = max(repository.revisions, key=lambda revision: revision.last_modified)
        if (model := _model(repository.repo_id, newest.snapshot_path, newest.size_on_disk)) is not None:
            found.append(model)
    return sorted(found, key=lambda model: model.name)


def _model(name: str, folder: Path, size: int) -> KnownModel | None:
    """Return the model in a folder; None if its configuration cannot be read or no task supports it."""
    from .detection import task_class_of

    try:
        config = json.loads(_content(folder / "config.json"))
        if not isinstance(config, dict) or not _has_weights(folder):
            return None
        task = task_class_of(SimpleNamespace(**{str(key): value for key, value in config.items()}), str(folder), name)
    except (Error, ValueError, TypeError, RecursionError):
        return None
    if task.kind is None:
        return None
    return KnownModel(
        name, task.kind.noun, f"{task.noun}s", _labels(config) if task.kind.classifies else (), size, _licence(folder),
        "cache",
    )  # fmt: skip


def _has_weights(folder: Path) -> bool:
    return any(file.name.endswith(".safetensors") for file in folder.iterdir())


def _labels(config: dict[str, Any]) -> tuple[str, ...]:
    labels = config.get("id2label")
    return tuple(map(str, labels.values()))[:_SHOWN] if isinstance(labels, dict) else ()


def _licence(folder: Path) -> str:
    """Return the licence that the model card states in its first lines."""
    try:
        card = _content(folder / "README.md")
    except Error:
        return ""
    match = _LICENCE.search(card.split("\n---", 1)[0])
    return match[1] if match else ""


def _content(path: Path) -> str:
    return read_text(path, path.name, LARGEST_SETTINGS)
