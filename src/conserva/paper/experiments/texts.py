"""The text experiment: tables 1 and 2 on datasets of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...datasets import Labelled
from ...datasets import dataset as dataset_of
from ...evaluation.result import Evaluation
from ...tasks.loading import load
from ...tasks.text import Text
from ..training.classifier import Classifier
from ..training.recipe import EMBEDDINGS, Recipe, TextRecipe
from ..training.texts import TextClassifier
from .plan import Plan, Slice
from .result import TextResult, TrainedText
from .rows import TEXT_ROWS
from .sentences import sentences

PART = "evaluation"


@dataclass(frozen=True)
class TextPlan(Plan):
    """One run of the text experiment."""

    embeddings: str = EMBEDDINGS
    as_released: bool = False

    rows = TEXT_ROWS
    quick_slice = Slice(count=6, tokens=32)
    quick_count = 200

    def classifier(self, dataset: str, reading: Callable[[int, int], None] | None = None) -> Classifier:
        return TextClassifier(dataset, self.embeddings, self.as_released)

    def recipe(self, classifier: Classifier) -> Recipe:
        recipe = classifier.recipe()
        assert isinstance(recipe, TextRecipe)
        return replace(recipe, epochs=2, tokens=32, learning_rate=1e-3) if self.quick else recipe

    def parts(self) -> tuple[str, ...]:
        return (PART,)

    def task(self, model: Path, dataset: str) -> Text:
        task = load(model)
        assert isinstance(task, Text)
        task.name = dataset
        task.tokenizer.model_max_length = self.slice(dataset).tokens or task.longest
        return task

    def data(self, dataset: str) -> Labelled:
        return dataset_of(dataset).read("test")

    def options(self, dataset: str, part: str) -> dict[str, Any]:
        return {"count": self.slice(dataset).count, "truncate": True}

    def result(
        self,
        classifier: Classifier,
        model: Path,
        trained: Sequence[Mapping[str, Any]],
        evaluations: Mapping[str, Sequence[Evaluation]],
        pooled: Mapping[str, Evaluation],
    ) -> TextResult:
        first, dataset = trained[0], classifier.dataset
        return TextResult(
            dataset=dataset,
            title=classifier.title,
            labels=classifier.labels,
            texts=first["texts"],
            majority=first["majority"],
            recipe={**first["recipe"], "embeddings": first["embeddings"], "as_released": first["as_released"]},
            evaluated_tokens=self.slice(dataset).tokens,
            trained=tuple(
                TrainedText(
                    seed=one["seed"],
                    validation_accuracy=one["validation_accuracy"],
                    test_accuracy=one["test_accuracy"],
                    best_epoch=one["best_epoch"],
                    epochs=one.get("last_epoch") or len(one["epochs"]),
                    weights=one["weights"],
                    auac={row.method: row.auac.mean for row in found.methods},
                    au_mse={row.method: row.au_mse.mean for row in found.methods},
                )
                for one, found in zip(trained, evaluations[PART], strict=True)
            ),
            evaluation=pooled[PART],
            sentences=sentences(self.task(model, dataset), dataset, self.data(dataset)),
            provenance={**first["provenance"], "device": self.device, "quick": self.quick},
        )
