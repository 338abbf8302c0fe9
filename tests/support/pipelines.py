"""Pipelines of transformers around tiny models."""

from __future__ import annotations

from typing import Any

import transformers

import language
import tiny_heads
import tiny_speech
from conserva.models.quiet import quiet_loading
from objects import bert, classifier, vit


def piped(kind: str, **options: Any) -> Any:
    """Return a pipeline for a task, around a tiny model in evaluation mode."""
    parts: dict[str, Any] = {"tokenizer": tiny_heads.tokenizer()}
    if kind in ("text-classification", "zero-shot-classification"):
        parts["model"] = classifier(num_labels=3)
    elif kind == "token-classification":
        parts["model"] = bert("AutoModelForTokenClassification", num_labels=3)
    elif kind == "fill-mask":
        parts["model"] = bert("AutoModelForMaskedLM")
    elif kind == "text-generation":
        tokenizer = language.byte_tokenizer(chat_template=language.TEMPLATE)
        parts = {"model": language.language_model(), "tokenizer": tokenizer}
    elif kind == "image-classification":
        parts = {"model": vit(), "image_processor": transformers.ViTImageProcessor(size={"height": 32, "width": 32})}
    elif kind == "automatic-speech-recognition":
        speech = tiny_speech.speech()
        parts = {"model": speech.network, "tokenizer": speech.tokenizer, "feature_extractor": speech.extractor}
    with quiet_loading():
        return transformers.pipeline(kind, **{**parts, **options})
