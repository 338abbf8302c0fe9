"""The bundled models."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

BUNDLED = "sentiment"
"""The default model: sentiment of film reviews."""

MOLECULES, DIGITS = "bace", "mnist"
"""The graph models: molecules that inhibit the enzyme BACE, and handwritten digits as superpixels."""

IMAGES = "digits"
"""The image model: handwritten digits as pixels."""

_READS = {
    BUNDLED: ("text classifier", "English film reviews"),
    MOLECULES: ("graph classifier", "molecules as SMILES: --smiles"),
    DIGITS: ("graph classifier", "handwritten digits as superpixels: --digit"),
    IMAGES: ("image classifier", "images of handwritten digits: --image, --digit"),
}
"""Name -> the kind of model, and what it reads."""

BUNDLED_MODELS = tuple(_READS)

_LICENCE = re.compile(r"^## Licence\n- Weights: ([\w.-]+)", re.MULTILINE)


@dataclass(frozen=True)
class KnownModel:
    """A model that can be loaded without a download."""

    name: str
    kind: str
    """The kind of model, such as "text classifier"."""
    reads: str
    labels: tuple[str, ...]
    """What it tells: its classes; empty for models without named classes."""
    bytes: int
    """The size of its files."""
    licence: str
    """The licence of the weights by the model card; empty if the card does not state it."""
    source: str
    """"bundled" or "cache"."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as lists, strings and numbers."""
        return {**asdict(self), "labels": list(self.labels)}


def bundled_models() -> list[KnownModel]:
    """Return the bundled models, by their configurations and model cards."""
    found = []
    for name, (kind, reads) in _READS.items():
        folder = resources.files("conserva") / "models" / name
        labels = json.loads((folder / "config.json").read_text(encoding="utf-8"))["id2label"]
        licence = _LICENCE.search((folder / "README.md").read_text(encoding="utf-8"))
        size = sum(len(file.read_bytes()) for file in folder.iterdir() if file.is_file())
        found.append(
            KnownModel(name, kind, reads, tuple(labels.values()), size, licence[1] if licence else "", "bundled")
        )
    return found
