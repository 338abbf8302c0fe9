"""What tests of training share: the two kinds of data, texts and graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from chains import IDS, NUMBERS
from conserva.datasets import Dataset
from conserva.datasets.graph_catalogue import GRAPH_DATASETS
from conserva.paper.training.classifier import Classifier
from conserva.paper.training.graphs import GraphClassifier
from conserva.paper.training.recipe import GraphRecipe, Recipe, TextRecipe
from conserva.paper.training.run import train
from conserva.paper.training.texts import TextClassifier


@pytest.fixture(scope="module")
def known_datasets(data: Dataset) -> Iterator[None]:
    """The small datasets of texts and graphs by their names; the state of a training is saved after every epoch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GRAPH_DATASETS, "chains", IDS)  # type: ignore[arg-type]
        patch.setitem(GRAPH_DATASETS, "lines", NUMBERS)  # type: ignore[arg-type]
        patch.setattr(GraphClassifier, "saved_every", 0.0)
        yield


@dataclass(frozen=True)
class Kind:
    """A kind of data: how its classifier is made, its recipe, and what else is changed in tests."""

    make: Any
    recipe: Recipe
    """24 samples, one a step: 24 steps an epoch; progress is told after 20 of them, and at the end."""
    other: dict[str, Any]
    """A setting of the classifier that makes another training."""
    suspect: str


KINDS = {
    "texts": Kind(
        lambda **changes: TextClassifier("small", **{"embeddings": "sentiment", **changes}),
        TextRecipe(learning_rate=1e-3, epochs=3, batch_size=1, patience=3, tokens=8),
        {"as_released": True},
        "embeddings",
    ),
    "graphs": Kind(
        lambda **changes: GraphClassifier("chains", **changes),
        GraphRecipe(learning_rate=1e-2, epochs=3, batch_size=1),
        {"shape": {"pre_norm": False}},
        "numbers of the nodes",
    ),
}
KIND_NAMES = pytest.mark.parametrize("kind", list(KINDS))
TEXT, GRAPH = KINDS["texts"].recipe, KINDS["graphs"].recipe
SHORT = replace(TEXT, epochs=2, batch_size=8)


def trained(kind: str, out: Path, classifier: Classifier | None = None, **changes: Any) -> dict[str, Any]:
    return train(classifier or KINDS[kind].make(), out, **{"recipe": KINDS[kind].recipe, **changes})


def texts(out: Path, recipe: Recipe = SHORT, count: int | None = None, **changes: Any) -> dict[str, Any]:
    return train(KINDS["texts"].make(**changes), out, recipe=recipe, count=count)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return AutoModelForSequenceClassification.from_pretrained(out).state_dict()
