"""The classifier of texts: attention-only blocks on the frozen embeddings of a BERT."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..._util.versions import versions
from ...datasets import Dataset, dataset
from ...models.pretrained import UNTRUSTED, part_of, reading
from ...tasks.fingerprint import configuration_of, fingerprint, hash_of, preprocessor_hash
from ...tasks.loading import source_of
from .classifier import Classifier, Prepared
from .recipe import EMBEDDINGS, RECIPES, Recipe, TextRecipe
from .text_samples import TextSamples


@dataclass
class TextClassifier(Classifier):
    """The classifier of texts of Ali et al. (2022).

    Parameters
    ----------
    data
        A dataset, or its name as in `conserva.datasets`.
    embeddings
        The BERT whose embeddings are used, frozen: a folder or a name on the Hugging Face hub.
    as_released
        Whether the model has the quirks of the paper's released code: unscaled attention scores, and norms without
        weights that divide by the standard deviation with N - 1.
    folder
        The folder of the datasets; None for the environment variable CONSERVA_DATA, or the hub.
    """

    data: str | Dataset
    embeddings: str = EMBEDDINGS
    as_released: bool = False
    folder: str | Path | None = None

    samples = "texts"
    saved_every = 0.0
    metric = "accuracy"

    def __post_init__(self) -> None:
        self._data = dataset(self.data) if isinstance(self.data, str) else self.data
        self.dataset, self.title, self.labels = self._data.name, self._data.title, tuple(self._data.labels)

    def recipe(self) -> Recipe:
        return RECIPES.get(self.dataset, TextRecipe())

    def settings(self) -> dict[str, Any]:
        return {"as_released": self.as_released, "embeddings": Path(self.embeddings).name}

    def prepare(self, recipe: Recipe, seed: int, count: int | None, device: torch.device) -> Prepared:
        from ...models.attention_only import AttentionOnlyConfig, with_embeddings

        assert isinstance(recipe, TextRecipe)
        data = {name: self._data.read(name, self.folder).take(count, seed) for name in ("train", "validation", "test")}
        quirks = AttentionOnlyConfig.quirks() if self.as_released else {}
        advice = "give the folder of a BERT with its tokenizer, or a name on the hub."
        with reading(f"embeddings={str(self.embeddings)!r}", advice), torch.random.fork_rng([]):
            torch.default_generator.manual_seed(seed)  # weights are drawn on the CPU: other devices' states stay
            source = source_of(self.embeddings)
            model = with_embeddings(source, self._data.labels, **quirks)
            tokenizer = part_of("AutoTokenizer", source, UNTRUSTED)
        tokens = min(recipe.tokens, model.config.max_position_embeddings)
        splits = {name: TextSamples.of(one, tokenizer, tokens, device) for name, one in data.items()}
        used = versions()
        prepared = Prepared(
            model,
            splits,
            used,
            tokenizer,
            settings={  # folders of one name may hold different BERTs, and files of one name different texts
                "embeddings_weights": fingerprint(model.embeddings),
                "embeddings_configuration": hash_of(configuration_of(model.config)),
                "tokenizer": preprocessor_hash(tokenizer),
                "data": {name: hash_of([one.texts, one.labels]) for name, one in data.items()},
            },
            state_settings={"versions": used},
            facts={"source": {name: one.source for name, one in data.items()}},
        )
        tokenizer.model_max_length = tokens  # after its hash was taken
        return prepared
