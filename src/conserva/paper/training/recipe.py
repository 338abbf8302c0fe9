"""How a classifier is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import Error

EMBEDDINGS = "sentence-transformers/all-MiniLM-L6-v2"
"""The BERT whose frozen embeddings a classifier is built on, if nothing else is said: a folder or a hub name."""


@dataclass(frozen=True)
class Recipe:
    """Ali et al.'s (2022, appendix C): AdamW, batches of 32, 2e-5 falling to 0 over at most 20 epochs, norm clipped."""

    learning_rate: float = 2e-5
    epochs: int = 20
    batch_size: int = 32
    weight_decay: float = 0.0
    clip: float = 1.0
    patience: int = 3
    """After how many epochs without a better one training ends: by validation accuracy, then by loss."""
    tokens: int = 512
    """How many tokens of a text are read, in training and when accuracy is measured."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "epochs", "batch_size", "clip", "patience", "tokens"):
            value = getattr(self, name)
            if not value > 0:
                raise Error(f"{name}={value!r} must be more than 0.")
        if not self.weight_decay >= 0:
            raise Error(f"weight_decay={self.weight_decay!r} must not be less than 0.")
        if self.tokens < 3:
            raise Error(f"tokens={self.tokens!r} leaves no word of a text: two tokens are those that frame it.")


RECIPES: Mapping[str, Recipe] = {
    "sst2": Recipe(learning_rate=1e-4),
    "imdb": Recipe(learning_rate=5e-5),
    "tweeteval-emotion": Recipe(learning_rate=1e-4),
    "tweeteval-hate": Recipe(learning_rate=1e-4),
    "tweeteval-sentiment": Recipe(learning_rate=1e-4),
    "semaine": Recipe(learning_rate=1e-4),
}
"""Dataset -> its recipe, where the paper's learning rate was not the best on the validation split."""


def recipe_of(dataset: str) -> Recipe:
    """Return a dataset's recipe."""
    return RECIPES.get(dataset, Recipe())
