"""A Graphormer in training."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .batches import Samples
from .graph_recipe import GraphRecipe
from .measures import measures, predicted, roc_auc
from .trainer import Epoch, Trainer

MEASURED_NODES = 16384
"""Nodes in a batch when graphs are measured."""
SAVED_EVERY = 20.0
"""Seconds between states on disk: an epoch may last a fraction of one."""


@dataclass
class GraphTrainer(Trainer[GraphRecipe]):
    """A classifier of graphs: the best epoch by a metric is kept, among equals the one of lowest loss, or the last."""

    metric: str = "accuracy"
    """What the best epoch is found by: "accuracy", or "roc_auc" for two classes."""

    suspect = "numbers of the nodes"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._average = [p.detach().clone() for p in self._trained] if self.recipe.average else []
        self._made = 0
        self._saved = time.monotonic()

    def run(self, folder: Path, progress: Callable[[int, int], None] | None = None) -> Epoch:
        """Train to the end, and leave the model with the weights of the epoch that is kept, which is returned."""
        from ...models.graphormer import trusted_ids

        with trusted_ids():  # `GraphBatches` has checked them
            return super().run(folder, progress)

    def kept_epoch(self) -> Epoch:
        best = self.best_epoch()
        return self.history[-1] if self.recipe.keep == "last" or best is None else best

    def best_epoch(self) -> Epoch | None:
        """Return the best epoch so far; none without a validation split."""
        if self.validation is None:
            return None
        return min(self.history, key=lambda one: (-one.validation[self.metric], one.validation["loss"], one.epoch))

    def _share(self, step: int) -> float:
        return self.recipe.share(step, self._steps * self.recipe.epochs)

    def _measured(self) -> dict[str, float]:
        assert self.validation is not None
        return graph_measures(self.model, self.validation, self.metric)

    def _is_due(self) -> bool:
        return self._is_done() or time.monotonic() - self._saved >= SAVED_EVERY

    def _save(self, path: Path) -> None:
        super()._save(path)
        self._saved = time.monotonic()

    def _stepped(self) -> None:
        if not self._average:
            return
        self._made += 1
        left = min(self.recipe.average, self._made / (self._made + 9))  # the first weights are soon forgotten
        with torch.no_grad():
            torch._foreach_lerp_(self._average, tuple(self._trained), 1 - left)

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for parameter, mean in zip(self._trained, self._average, strict=bool(self._average)):
            parameter.data, mean.data = mean.data, parameter.data

    def _more_state(self) -> dict[str, Any]:
        return {"average": self._average, "made": self._made}

    def _take_state(self, state: Mapping[str, Any]) -> None:
        self._average, self._made = list(state["average"]), int(state["made"])


def graph_measures(model: nn.Module, data: Samples, metric: str) -> dict[str, float]:
    """Return loss, accuracy and, where that is the metric, ROC-AUC, dropout off."""
    logits, labels = predicted(model, data, MEASURED_NODES)
    found = measures(logits, labels)
    if metric == "roc_auc":
        found["roc_auc"] = roc_auc((logits[:, 1] - logits[:, 0]).double(), labels)
    return found
