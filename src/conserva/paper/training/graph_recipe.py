"""How a Graphormer is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...errors import Error

SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "constant": lambda done: 1.0,
}
"""How the learning rate goes on after the warm-up: the share of the way done -> the share of the rate."""


@dataclass(frozen=True)
class GraphRecipe:
    """Ali et al.'s (2022): AdamW, 2e-4, batches of 64, 1000 epochs.

    They do not say the rest. As in the first release of Ying et al. (2021) there is a weight decay of 0.01, a warm-up,
    and then a rate that falls in a line.
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
    """Whether the validation split is held out and measured after every epoch; otherwise it is trained on too."""
    keep: str = "best"
    """Which epoch's weights are kept: "best" on the validation split, or "last"."""
    average: float = 0.0
    """How much of an average of weights is left after a step, as 0.999: it is measured and kept. 0 for no average."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "epochs", "batch_size", "clip"):
            value = getattr(self, name)
            if not value > 0:
                raise Error(f"{name}={value!r} must be more than 0.")
        if not self.weight_decay >= 0:
            raise Error(f"weight_decay={self.weight_decay!r} must not be less than 0.")
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

    def share(self, step: int, total: int) -> float:
        """Return the share of the learning rate for a step, counted from 0, of all."""
        warming = math.ceil(self.warm_up * total)
        if step < warming:
            return (step + 1) / (warming + 1)
        return SCHEDULES[self.schedule](min(1.0, (step - warming) / max(1, total - warming)))


GRAPH_RECIPES: Mapping[str, GraphRecipe] = {
    "mnist": GraphRecipe(epochs=10, hold_out=False, keep="last"),
}
"""Dataset -> its recipe, where it is not that of BACE."""


def graph_recipe_of(dataset: str) -> GraphRecipe:
    """Return the recipe of a dataset of graphs."""
    return GRAPH_RECIPES.get(dataset, GraphRecipe())
