"""How a classifier is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...errors import Error

EMBEDDINGS = "sentence-transformers/all-MiniLM-L6-v2"
"""The BERT whose frozen embeddings are used by default: a folder or a name on the Hugging Face hub."""

SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "constant": lambda done: 1.0,
}
"""The learning rate after the warm-up: from the share of the steps done to the share of the learning rate."""


@dataclass(frozen=True)
class Recipe:
    """What the recipes of texts and graphs have in common. AdamW is the optimizer."""

    learning_rate: float = 2e-5
    epochs: int = 20
    batch_size: int = 32
    weight_decay: float = 0.0
    clip: float = 1.0
    """The largest norm of the gradient."""

    # Settings that only some recipes have as fields. Without an annotation they are not fields.
    schedule = "linear"
    warm_up = 0.0
    hold_out = True
    keep = "best"
    average = 0.0
    patience = 0

    def __post_init__(self) -> None:
        self._check_positive("learning_rate", "epochs", "batch_size", "clip")
        if not self.weight_decay >= 0:
            raise Error(f"weight_decay={self.weight_decay!r} must not be less than 0.")

    def _check_positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not value > 0:
                raise Error(f"{name}={value!r} must be more than 0.")

    def share(self, step: int, total: int) -> float:
        """Return the share of the learning rate for a step, counted from 0, out of `total` steps."""
        warming = math.ceil(self.warm_up * total)
        if step < warming:
            return (step + 1) / (warming + 1)
        return SCHEDULES[self.schedule](min(1.0, (step - warming) / max(1, total - warming)))


@dataclass(frozen=True)
class TextRecipe(Recipe):
    """The recipe for texts (Ali et al. 2022, appendix C)."""

    patience: int = 3
    """After how many epochs without a better one training ends: by validation accuracy, then by loss."""
    tokens: int = 512
    """How many tokens of a text are read, in training and when accuracy is measured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("patience", "tokens")
        if self.tokens < 3:
            raise Error(f"tokens={self.tokens!r} leaves no word of a text: [CLS] and [SEP] are two of them.")


@dataclass(frozen=True)
class GraphRecipe(Recipe):
    """The recipe for graphs (Ali et al. 2022): learning rate 2e-4, batches of 64, 1000 epochs.

    The paper does not give the other settings. Weight decay, warm-up and linear schedule are those of the first release
    of Ying et al. (2021).
    """

    learning_rate: float = 2e-4
    epochs: int = 1000
    batch_size: int = 64
    weight_decay: float = 0.01
    clip: float = 5.0
    schedule: str = "linear"
    warm_up: float = 0.02
    """The share of all steps in which the learning rate rises from 0."""
    hold_out: bool = True
    """Whether the validation split is measured after every epoch. If not, the model is trained on it too."""
    keep: str = "best"
    """Which epoch's weights are kept: "best" on the validation split, or "last"."""
    average: float = 0.0
    """The decay of a moving average of the weights, as 0.999. The average is measured and kept. 0 for no average."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("warm_up", "average"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise Error(f"{name}={value!r} must be from 0 to less than 1.")
        if self.schedule not in SCHEDULES:
            raise Error(f"schedule={self.schedule!r} is unknown: there is {', '.join(SCHEDULES)}.")
        if self.keep not in ("best", "last"):
            raise Error(f"keep={self.keep!r} is unknown: there is best and last.")
        if self.keep == "best" and not self.hold_out:
            raise Error("keep='best' needs the validation split: keep the last epoch, or hold the split out.")


RECIPES: Mapping[str, Recipe] = {
    "sst2": TextRecipe(learning_rate=1e-4),
    "imdb": TextRecipe(learning_rate=5e-5),
    "tweeteval-emotion": TextRecipe(learning_rate=1e-4),
    "tweeteval-hate": TextRecipe(learning_rate=1e-4),
    "tweeteval-sentiment": TextRecipe(learning_rate=1e-4),
    "semaine": TextRecipe(learning_rate=1e-4),
    "mnist": GraphRecipe(epochs=10, hold_out=False, keep="last"),
}
"""Dataset -> its recipe, where it is not the default one. Of texts: the learning rate that was best on validation."""
