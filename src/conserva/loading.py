"""Loading a model as a task: with its tokenizer if it reads texts."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from .errors import Error
from .quiet import quiet_loading
from .tasks import Graph, Task, Text

BUNDLED = "sentiment"
"""The model that comes with the package and is loaded if none is named: sentiment of film reviews."""

MOLECULES, DIGITS = "bace", "mnist"
"""The graph models that come with the package: which molecules inhibit an enzyme, and handwritten digits."""


def load(name: str | Path = BUNDLED, *, trust_remote_code: bool = False) -> Task:
    """Return the task of a model: a bundled one, one in a folder, or one from the Hugging Face hub.

    Weights are read from safetensors only; code that comes with a model runs only with `trust_remote_code=True`.
    """
    from safetensors import SafetensorError
    from transformers import AutoTokenizer

    source = source_of(name)
    options = {"trust_remote_code": trust_remote_code}
    is_graph = _kind(source) == "conserva-graphormer"
    try:
        with quiet_loading():
            tokenizer = None if is_graph else AutoTokenizer.from_pretrained(source, **options)
            model, missing = _model(source, options)
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:160]
        raise Error(
            f"model={str(name)!r} could not be loaded: it is no folder with config.json, model.safetensors and a "
            f"tokenizer, and the hub did not give it ({reason}). Bundled models are {BUNDLED!r}, {MOLECULES!r} and "
            f"{DIGITS!r}."
        ) from None
    if missing:
        raise Error(
            f"model={str(name)!r} is no {'graph' if is_graph else 'text'} classifier: its file has no weights for "
            f"{', '.join(missing[:3])}. Fine-tune it for classification first."
        )
    return Text(model, tokenizer, name=str(name)) if tokenizer is not None else Graph(model, name=str(name))


def _kind(source: str) -> str | None:
    """Return a folder's kind of model; None for a model on the hub, where there is none of graphs."""
    path = Path(source) / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError:
        return None  # transformers says what is wrong with it
    return found.get("model_type") if isinstance(found, dict) else None


def _model(source: str, options: dict[str, bool]) -> tuple[Any, list[str]]:
    """Return a model, and the weights that its file does not have."""
    import torch
    from transformers import AutoModelForSequenceClassification

    from . import models  # noqa: F401 - makes the paper's own models known to transformers

    model, report = AutoModelForSequenceClassification.from_pretrained(
        source, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **options
    )
    return model, sorted(report["missing_keys"])


def source_of(name: str | Path) -> str:
    """Return what transformers loads a model from: a bundled one by its name, a folder, or a name on the hub."""
    if str(name) in (BUNDLED, MOLECULES, DIGITS) and not (Path(name) / "config.json").is_file():
        return str(resources.files("conserva") / "models" / str(name))
    folder = Path(name).expanduser()
    if folder.is_dir() and not (folder / "config.json").exists():
        raise Error(f"model={str(name)!r} is a folder without config.json: save a model there with save_pretrained.")
    return str(folder) if folder.is_dir() else str(name)
