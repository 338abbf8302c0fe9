"""What a training leaves beside the weights, for texts and for graphs."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import Error
from ..schema import parsed
from ..whole import whole_file

SCHEMA = "conserva/training/1"
RESULT = "training.json"


def folder_of(out: str | Path) -> Path:
    """Return the folder for a model, unless a file is in its place."""
    if Path(out).exists() and not Path(out).is_dir():
        raise Error(f"out={str(out)!r} is a file: name a folder, or what is to become one.")
    return Path(out)


def provenance(packages: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of what a classifier was trained with."""
    names = ("conserva", "torch", "transformers", *packages)
    return {**{name: metadata.version(name) for name in names}, "python": platform.python_version()}


def write_training(out: Path, result: Mapping[str, Any]) -> None:
    """Write what a training came to."""
    with whole_file(out / RESULT) as half:
        half.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_training(out: Path) -> dict[str, Any]:
    """Return what a finished training wrote beside the weights."""
    path = out / RESULT
    try:
        return {"schema": SCHEMA, **parsed(path.read_text(encoding="utf-8"), SCHEMA, "result of a training")}
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}.") from None
    except Error:
        raise Error(f"{path} is damaged: delete it and start anew.") from None


def finished(out: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result that a folder holds, if it is one of the same settings."""
    if not (out / RESULT).exists():
        return None
    found = read_training(out)
    changed = [key for key, value in settings.items() if found.get(key) != value]
    if changed:
        raise Error(f"{out} holds another training: it differs in {', '.join(changed)}. Choose another folder.")
    return found
