"""Loading a model and its tokenizer as a task."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from .errors import Error
from .quiet import quiet_loading
from .tasks.text import Text

BUNDLED = "sentiment"
"""The name of the model that comes with the package: sentiment of film reviews."""


def load(name: str | Path = BUNDLED, *, trust_remote_code: bool = False) -> Text:
    """Return the task of a model: the bundled one, one in a folder, or one from the Hugging Face hub.

    Weights are read from safetensors only; code that comes with a model runs only with `trust_remote_code=True`.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from . import models  # noqa: F401 - makes the paper's own models known to transformers

    source = source_of(name)
    options = {"trust_remote_code": trust_remote_code}
    try:
        with quiet_loading():
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            model, report = AutoModelForSequenceClassification.from_pretrained(
                source, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **options
            )
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:160]
        raise Error(
            f"model={str(name)!r} could not be loaded: it is no folder with config.json, model.safetensors and a "
            f"tokenizer, and the hub did not give it ({reason}). The bundled model is {BUNDLED!r}."
        ) from None
    if missing := sorted(report["missing_keys"]):
        raise Error(
            f"model={str(name)!r} is no text classifier: its file has no weights for {', '.join(missing[:3])}. "
            "Fine-tune it for classification first."
        )
    return Text(model, tokenizer, name=str(name))


def source_of(name: str | Path) -> str:
    """Return what transformers loads a model from: the bundled one by its name, a folder, or a name on the hub."""
    if str(name) == BUNDLED and not Path(BUNDLED).is_dir():
        return str(resources.files("conserva") / "models" / BUNDLED)
    folder = Path(name).expanduser()
    if folder.is_dir() and not (folder / "config.json").exists():
        raise Error(f"model={str(name)!r} is a folder without config.json: save a model there with save_pretrained.")
    return str(folder) if folder.is_dir() else str(name)
