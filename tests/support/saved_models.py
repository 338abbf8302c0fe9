"""Tiny models of every kind, saved in folders as their owners would save them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import language
import tiny_heads
import writers
from conserva.models.quiet import quiet_loading
from saved_image_models import saved as saved_vit
from tiny_speech import speech


def _with_tokenizer(folder: Path, model: Any, tokenizer: Any) -> Path:
    with quiet_loading():
        copy.deepcopy(model).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _head(kind: str, auto: str) -> Callable[[Path], Path]:
    return lambda folder: _with_tokenizer(folder, tiny_heads.model(kind, auto), tiny_heads.tokenizer())


def _causal(folder: Path) -> Path:
    return _with_tokenizer(folder, language.language_model(), language.byte_tokenizer())


def _seq2seq(folder: Path) -> Path:
    task = writers.writer("t5")
    return _with_tokenizer(folder, task.network, task.tokenizer)


def _speech(folder: Path) -> Path:
    task = speech()
    task.extractor.save_pretrained(folder)
    return _with_tokenizer(folder, task.network, task.tokenizer)


def _sentences(folder: Path) -> Path:
    _head("bert", "AutoModel")(folder)
    (folder / "modules.json").write_text(json.dumps([]))
    return folder


SAVED: dict[str, Callable[[Path], Path]] = {
    "Text": _head("electra", "AutoModelForSequenceClassification"),
    "Causal": _causal,
    "Seq2Seq": _seq2seq,
    "Speech": _speech,
    "Image": saved_vit,
    "Tokens": _head("bert", "AutoModelForTokenClassification"),
    "Question": _head("bert", "AutoModelForQuestionAnswering"),
    "Blanks": _head("bert", "AutoModelForMaskedLM"),
    "Similarity": _sentences,
}
"""Task -> what saves a model of it in a folder."""
