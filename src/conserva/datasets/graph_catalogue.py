"""The graph datasets of Ali et al. (ICML 2022) by name, and the shape of the Graphormer that reads them.

BACE is split by scaffolds; `bace-random` has the same molecules in splits of the same sizes, drawn at random.

| name | train | validation | test |
| --- | --- | --- | --- |
| bace | 1,210 | 151 | 152 |
| bace-random | 1,210 | 151 | 152 |
| mnist | 55,000 | 5,000 | 10,000 |
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ..errors import Error
from .catalogue import SPLITS
from .graph import Graph
from .molecules import EDGE_VALUES, NODE_VALUES, bace
from .superpixels import NODE_FEATURES, digits

Progress = Callable[[int, int], None]
Reader = Callable[[str, str | Path | None, int | None, int, Progress | None], list[Graph]]

BOTH = "train+validation"
"""Train and validation as one split, for a last training that holds nothing out."""


@dataclass(frozen=True)
class GraphDataset:
    """A published dataset of graphs: its labels in the order of their indices, and the model that reads it."""

    name: str
    title: str
    labels: tuple[str, ...]
    metric: str
    """What the paper measures on it: "accuracy" or "roc_auc"."""
    shape: Mapping[str, int]
    """Settings of `conserva.models.graphormer.GraphormerConfig`."""
    sizes: Mapping[str, int]
    """The graphs in each split."""
    packages: tuple[str, ...]
    """What the graphs are made with: other versions may make others."""
    reader: Reader
    """Called with a split, a folder, a count (None for all), a seed and what hears of the progress."""

    def read(
        self,
        split: str,
        folder: str | Path | None = None,
        count: int | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> list[Graph]:
        """Return a split, or "train+validation".

        Parameters
        ----------
        folder
            The datasets' folder; the one that CONSERVA_DATA names, if left out.
        count
            How many graphs, drawn at random with `seed`; all for None.
        progress
            Called with the number of graphs done and of all, while superpixels are found.
        """
        if split not in (*SPLITS, BOTH):
            raise Error(f"split={split!r} is unknown: {self.name} has {', '.join(SPLITS)} and {BOTH}.")
        if count is not None and count < 1:
            raise Error(f"count={count} takes no graph: give 1 or more, or None for all.")
        if split != BOTH:
            return self.reader(split, folder, count, seed, progress)
        if count is None:
            return [graph for part in SPLITS[:2] for graph in self.reader(part, folder, None, seed, progress)]
        # As many of each as they have of the whole.
        train = round(count * self.sizes["train"] / (self.sizes["train"] + self.sizes["validation"]))
        parts = {"train": train, "validation": count - train}
        return [
            graph
            for part, wanted in parts.items()
            if wanted
            for graph in self.reader(part, folder, wanted, seed, progress)
        ]


def graph_dataset(name: str) -> GraphDataset:
    """Return a dataset of graphs by its name."""
    if name not in GRAPH_DATASETS:
        near = difflib.get_close_matches(name.lower(), list(GRAPH_DATASETS), 1, 0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise Error(f"dataset={name!r} is unknown.{hint} Of graphs there is {', '.join(GRAPH_DATASETS)}.")
    return GRAPH_DATASETS[name]


def _bace(
    split: str, folder: str | Path | None, count: int | None, seed: int, progress: Progress | None
) -> list[Graph]:
    return _some(bace(split, folder), count, seed)


def _bace_random(
    split: str, folder: str | Path | None, count: int | None, seed: int, progress: Progress | None
) -> list[Graph]:
    return _some(bace(split, folder, random=0), count, seed)


def _some(graphs: list[Graph], count: int | None, seed: int) -> list[Graph]:
    if count is None or count >= len(graphs):
        return graphs
    return [graphs[row] for row in sorted(Random(seed).sample(range(len(graphs)), count))]


def _mnist(
    split: str, folder: str | Path | None, count: int | None, seed: int, progress: Progress | None
) -> list[Graph]:
    return digits(split, count, seed, folder, progress)


_MOLECULES = {"node_values": NODE_VALUES, "edge_values": EDGE_VALUES, "max_degree": 11, "max_hops": 5}
_SIZE = {"hidden_size": 80, "num_attention_heads": 8, "ffn_size": 80, "num_hidden_layers": 2, "max_distance": 19}
"""The slim Graphormer of Ying et al. (2021), with the two layers of Ali et al."""

_WIDE = {"hidden_size": 256, "ffn_size": 256}
"""In ten epochs at the paper's rate a wider model learns more: chosen on the validation split among 80 to 256."""

GRAPH_DATASETS: Mapping[str, GraphDataset] = {
    "bace": GraphDataset(
        "bace",
        "BACE",
        ("inactive", "active"),
        "roc_auc",
        {**_SIZE, **_MOLECULES},
        {"train": 1_210, "validation": 151, "test": 152},
        ("rdkit",),
        _bace,
    ),
    "bace-random": GraphDataset(
        "bace-random",
        "BACE-random",
        ("inactive", "active"),
        "roc_auc",
        {**_SIZE, **_MOLECULES},
        {"train": 1_210, "validation": 151, "test": 152},
        ("rdkit",),
        _bace_random,
    ),
    "mnist": GraphDataset(
        "mnist",
        "MNIST superpixels",
        tuple("0123456789"),
        "accuracy",
        {**_SIZE, **_WIDE, "node_features": NODE_FEATURES, "max_degree": 31},
        {"train": 55_000, "validation": 5_000, "test": 10_000},
        ("scikit-image",),
        _mnist,
    ),
}
"""The datasets of graphs by name."""
