"""Tiny models of sentence-transformers, built from tiny BERTs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn

import tiny_heads
from conserva.models.quiet import quiet_loading
from objects import bert, classifier


def saved(folder: Path, model: Any) -> str:
    with quiet_loading():
        model.save_pretrained(folder)
    tiny_heads.tokenizer().save_pretrained(folder)
    return str(folder)


def cross_encoder(folder: Path, labels: int = 1, problem_type: str | None = None, **options: Any) -> Any:
    model = classifier(num_labels=labels, problem_type=problem_type)
    with quiet_loading():
        return CrossEncoder(saved(folder, model), device="cpu", **options)


def sentence_encoder(folder: Path, *modules: nn.Module, pooling: Any = "mean", **options: Any) -> Any:
    with quiet_loading():
        first = Transformer(saved(folder, bert("AutoModel")))
        modules = (first, Pooling(first.get_embedding_dimension(), pooling_mode=pooling), *modules)
        return SentenceTransformer(modules=list(modules), device="cpu", **options)
