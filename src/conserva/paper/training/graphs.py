"""The classifier of graphs: a Graphormer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..._util.versions import versions
from ...datasets.graph_catalogue import BOTH, GraphDataset, graph_dataset
from ...errors import Error
from .classifier import Classifier, Prepared
from .graph_samples import GraphSamples
from .recipe import RECIPES, GraphRecipe, Recipe

if TYPE_CHECKING:
    from ...models.graphormer import GraphormerConfig


@dataclass
class GraphClassifier(Classifier):
    """The classifier of graphs of Ali et al. (2022).

    Parameters
    ----------
    data
        A dataset, or its name as in `conserva.datasets.graph_catalogue`.
    shape
        Settings of `GraphormerConfig` that differ from the dataset's own, as pre_norm=False.
    folder
        The folder of the datasets; None for the environment variable CONSERVA_DATA.
    reading
        Called with the number of graphs done, and of all, while superpixels are computed.
    """

    data: str | GraphDataset
    shape: Mapping[str, Any] = field(default_factory=dict)
    folder: str | Path | None = None
    reading: Callable[[int, int], None] | None = None

    samples = "graphs"
    saved_every = 20.0  # an epoch may last a fraction of a second

    def __post_init__(self) -> None:
        self._data = graph_dataset(self.data) if isinstance(self.data, str) else self.data
        self.dataset, self.title, self.labels = self._data.name, self._data.title, tuple(self._data.labels)
        self.metric = self._data.metric

    def recipe(self) -> Recipe:
        return RECIPES.get(self.dataset, GraphRecipe())

    def settings(self) -> dict[str, Any]:
        shape = {**self._data.shape, **self.shape}
        _config(self._data, shape)
        return {"shape": shape}

    def prepare(self, recipe: Recipe, seed: int, count: int | None, device: torch.device) -> Prepared:
        from ...models.graphormer import Graphormer

        config = _config(self._data, {**self._data.shape, **self.shape})
        with torch.random.fork_rng([]):
            torch.default_generator.manual_seed(seed)  # weights are drawn on the CPU: other devices' states stay
            model = Graphormer(config)
        names = ("train", "validation", "test") if recipe.hold_out else (BOTH, "test")
        splits = {
            name: GraphSamples.of(self._data.read(name, self.folder, count, seed, self.reading), config, device)
            for name in names
        }
        return Prepared(model, splits, versions(*self._data.packages))


def _config(data: GraphDataset, shape: Mapping[str, Any]) -> GraphormerConfig:
    """Return the configuration of the model. Raise an error if a setting makes no sense."""
    from ...models.graphormer import GraphormerConfig

    known = [name for name in inspect.get_annotations(GraphormerConfig) if name != "model_type"]
    for name, value in shape.items():
        if name not in known:
            raise Error(f"shape has {name!r}: a Graphormer has {', '.join(known)}.")
        if name.endswith("_prob"):
            if not 0 <= value < 1:
                raise Error(f"{name}={value!r} must be from 0 to less than 1.")
        elif value is not None and not isinstance(value, bool) and not value > 0:
            raise Error(f"{name}={value!r} must be more than 0.")
    names = dict(enumerate(data.labels))
    return GraphormerConfig(**shape, id2label=names, label2id={name: index for index, name in names.items()})
