"""The graph datasets of Ali et al. (ICML 2022) by name, and the configurations of their Graphormers.

BACE is split by scaffolds; `bace-random` has the same molecules in random splits of the same sizes.

| name | train | validation | test |
| --- | --- | --- | --- |
| bace | 1,210 | 151 | 152 |
| bace-random | 1,210 | 151 | 152 |
| mnist | 55,000 | 5,000 | 10,000 |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .._util.nearest import did_you_mean
from ..errors import Error
from .catalogue import GRAPH_NAMES, SPLITS
from .graph import Graph
from .molecules import EDGE_VALUES, NODE_VALUES, bace
from .superpixels import NODE_FEATURES, digits

Progress = Callable[[int, int], None]
Reader = Callable[[str, str | Path | None, int | None, int, Progress | None], list[Graph]]

BOTH = "train+validation"
"""Train and validation as one split, for a final training without validation."""


@dataclass(frozen=True)
class GraphDataset:
    """A published dataset of graphs: its labels in the order of their indices, and the configuration of its model."""

    name: str
    title: str
    labels: tuple[str, ...]
    metric: str
    """The metric that the paper reports: "accuracy" or "roc_auc"."""
    shape: Mapping[str, int]
    """Settings of `conserva.models.graphormer.GraphormerConfig`."""
    sizes: Mapping[str, int]
    """The number of graphs in each split."""
    packages: tuple[str, ...]
    """Packages that convert the data to graphs; the result can depend on their versions."""
    reader: Reader
    """Called with a split, a folder, a count (None for all), a seed and a progress callback."""

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
            The folder of datasets; by default the one in CONSERVA_DATA.
        count
            The number of graphs, drawn at random with `seed`; None for all.
        progress
            Called with the number of graphs done and the total, while superpixels are computed.
        """
        if split not in (*SPLITS, BOTH):
            raise Error(f"split={split!r} is unknown: {self.name} has {', '.join(SPLITS)} and {BOTH}.")
        if count is not None and count < 1:
            raise Error(f"count={count} is too small: give 1 or more, or None for all.")
        if split != BOTH:
            return self.reader(split, folder, count, seed, progress)
        if count is None:
            return [graph for part in SPLITS[:2] for graph in self.reader(part, folder, None, seed, progress)]
        # In proportion to the sizes of both.
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
        hint = did_you_mean(name, GRAPH_DATASETS)
        raise Error(f"dataset={name!r} is unknown.{hint} Choose one of {', '.join(GRAPH_DATASETS)}.")
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
"""A wider model is more accurate after the paper's ten epochs; chosen from 80 to 256 on the validation split."""

BACE, BACE_RANDOM, MNIST = GRAPH_NAMES

GRAPH_DATASETS: Mapping[str, GraphDataset] = {
    BACE: GraphDataset(
        BACE,
        "BACE",
        ("inactive", "active"),
        "roc_auc",
        {**_SIZE, **_MOLECULES},
        {"train": 1_210, "validation": 151, "test": 152},
        ("rdkit",),
        _bace,
    ),
    BACE_RANDOM: GraphDataset(
        BACE_RANDOM,
        "BACE-random",
        ("inactive", "active"),
        "roc_auc",
        {**_SIZE, **_MOLECULES},
        {"train": 1_210, "validation": 151, "test": 152},
        ("rdkit",),
        _bace_random,
    ),
    MNIST: GraphDataset(
        MNIST,
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
