"""Loading a model as the task that its configuration says it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import Error
from .heads import LANGUAGE, head_of
from .quiet import quiet_loading
from .tasks import Graph, Task
from .tasks.image import load_image

BUNDLED = "sentiment"
"""The model that comes with the package and is loaded if none is named: sentiment of film reviews."""

MOLECULES, DIGITS = "bace", "mnist"
"""The graph models that come with the package: which molecules inhibit an enzyme, and handwritten digits."""

IMAGES = "digits"
"""The image model that comes with the package: handwritten digits again, as pixels."""

BUNDLED_MODELS = (BUNDLED, MOLECULES, DIGITS, IMAGES)

GRAPHS = "conserva-graphormer"
"""The type of models of graphs."""

GGUF = ".gguf"
"""How files end that hold a language model with its configuration and its tokenizer."""


def load(
    name: str | Path = BUNDLED,
    *,
    labels: Sequence[str] | None = None,
    head: str | None = None,
    trust_remote_code: bool = False,
) -> Task:
    """Return the task of a model: a bundled one, one in a folder, one in a GGUF file, or one from the Hugging Face hub.

    What it is for, its own configuration says: classifying texts, images or graphs, writing on, translating,
    transcribing, tagging, answering, filling blanks, comparing sentences. A model that compares images with texts, as
    CLIP, needs the texts as `labels`. What a classifier's logits say, its configuration tells too; `head` overrides it
    with "single_label", "multi_label", "binary", "regression" or "ordinal". Weights are read from safetensors or GGUF
    only, in float32; code that comes with a model runs only with `trust_remote_code=True`.
    """
    from safetensors import SafetensorError
    from transformers import AutoConfig

    from . import models  # noqa: F401 - makes the paper's own models known to transformers

    source = source_of(name)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if source.endswith(GGUF):
        if not all(map(find_spec, ("gguf", "accelerate"))):
            raise Error(f"model={str(name)!r} is read by gguf and accelerate: pip install 'conserva[gguf]'.")
        source, options["gguf_file"] = str(Path(source).parent), Path(source).name
    try:
        with quiet_loading():
            if labels is not None:
                return load_image(source, options, labels, str(name), head)
            config = AutoConfig.from_pretrained(source, **options)
            kind = None if config.model_type == GRAPHS else head_of(config, source, str(name))
            if "gguf_file" in options:
                kind = LANGUAGE  # which is all that such files hold
            if head is not None and kind is not None and not kind.classifies:
                raise Error(f"head={head!r}: model={str(name)!r} is a {kind.noun}, whose output head is its own.")
            auto = "AutoModelForSequenceClassification" if kind is None else kind.auto
            model, missing = _model(auto, source, options)
            if missing:
                noun = "graph classifier" if kind is None else kind.noun
                raise Error(
                    f"model={str(name)!r} is no {noun}: its file has no weights for {', '.join(missing[:3])}. "
                    "Fine-tune it first."
                )
            if kind is None:
                return Graph(model, name=str(name), head=head)
            how = {"head": head} if kind.classifies else {}
            return kind.make(model, source, options, str(name), **how)
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:160]
        bundled = ", ".join(map(repr, BUNDLED_MODELS))
        raise Error(
            f"model={str(name)!r} could not be loaded: it is no folder with config.json, model.safetensors and a "
            f"tokenizer or processor, and the hub did not give it ({reason}). Bundled models are {bundled}."
        ) from None


def _model(auto: str, source: str, options: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return a model, and the weights that its file does not have."""
    import torch
    import transformers

    how = dict(options) if "gguf_file" in options else {**options, "use_safetensors": True}
    model, report = getattr(transformers, auto).from_pretrained(
        source, dtype=torch.float32, output_loading_info=True, **how
    )
    return model, sorted(report["missing_keys"])


def source_of(name: str | Path) -> str:
    """Return what a model is loaded from: a bundled one by its name, a folder, a GGUF file, or a name on the hub."""
    if str(name) in BUNDLED_MODELS and not (Path(name) / "config.json").is_file():
        return str(resources.files("conserva") / "models" / str(name))
    path = Path(name).expanduser()
    if path.suffix == GGUF and not path.is_file():
        raise Error(f"model={str(name)!r} does not exist: give a GGUF file that does.")
    if path.is_dir() and not (path / "config.json").exists():
        raise Error(f"model={str(name)!r} is a folder without config.json: save a model there with save_pretrained.")
    return str(path) if path.exists() else str(name)
