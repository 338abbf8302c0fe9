"""Folders of sentence-transformers are loaded without it, with what it does to texts and embeddings, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="sentence_transformers is not installed")

from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from torch import nn

import conserva
import tiny_heads
from conserva.models.quiet import quiet_loading
from objects import classifier
from sentence_models import cross_encoder, saved, sentence_encoder

PAIR = ("an unwatchably long film by eastwood.", "it is far too long")
EXACT = {"rel": 1e-6, "abs": 1e-6}
READING, SETTINGS = "sentence_bert_config.json", "config_sentence_transformers.json"


def folder_of(model: Any, path: Path, file: str = READING, **settings: Any) -> Path:
    """Save a model, with settings added to one of its files."""
    with quiet_loading():
        model.save_pretrained(str(path))
    known = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps(known | settings))
    return path


def predicted(folder: Path, kind: type) -> float:
    """Return what sentence-transformers predicts with the model in a folder."""
    with quiet_loading():
        model: Any = kind(str(folder), device="cpu")
    if kind is CrossEncoder:
        return float(np.max(model.predict(PAIR, activation_fn=nn.Identity())))
    return float(model.similarity(*model.encode(list(PAIR))[:, None]))


@pytest.mark.parametrize("labels", [1, 3])
def test_a_cross_encoder(tmp_path: Path, labels: int) -> None:
    folder = folder_of(cross_encoder(tmp_path / "a", labels), tmp_path / "b")
    assert conserva.explain(conserva.load(folder), PAIR).output == pytest.approx(
        predicted(folder, CrossEncoder), **EXACT
    )


@pytest.mark.parametrize("score", ["cosine", "dot"])
@pytest.mark.parametrize(("layers", "size"), [((), None), ((), 5), ((Normalize,), None), ((Normalize,), 5)])
def test_a_sentence_encoder(tmp_path: Path, score: str, layers: Any, size: int | None) -> None:
    model = sentence_encoder(tmp_path / "a", *(make() for make in layers), similarity_fn_name=score, truncate_dim=size)
    folder = folder_of(model, tmp_path / "b")
    if layers and size and score == "dot":
        with pytest.raises(conserva.Error, match=r"truncates normalised embeddings.*give conserva\.load the Sentence"):
            conserva.load(folder)
        return
    one = conserva.explain(conserva.load(folder), PAIR)
    assert one.output == pytest.approx(predicted(folder, SentenceTransformer), **EXACT)


@pytest.mark.parametrize("make", [cross_encoder, sentence_encoder])
def test_the_maximum_length_of_sentence_transformers_holds(tmp_path: Path, make: Callable[..., Any]) -> None:
    kind = CrossEncoder if make is cross_encoder else SentenceTransformer
    folder = folder_of(make(tmp_path / "a"), tmp_path / "b", max_seq_length=9)
    task = conserva.load(folder)
    with pytest.raises(conserva.Error, match="the model takes 9"):
        conserva.explain(task, PAIR)
    one = conserva.explain(task, PAIR, truncate=True)
    assert one.output == pytest.approx(predicted(folder, kind), **EXACT)


def test_the_settings_of_older_versions_are_read(tmp_path: Path) -> None:
    folder = folder_of(sentence_encoder(tmp_path / "a"), tmp_path / "b", max_seq_length=9)
    (folder / READING).rename(folder / "sentence_roberta_config.json")
    with pytest.raises(conserva.Error, match="the model takes 9"):
        conserva.explain(conserva.load(folder), PAIR)


@pytest.mark.parametrize("value", [0, -1, True, "9", [9]])
def test_a_maximum_length_that_is_not_one_is_refused(tmp_path: Path, value: Any) -> None:
    folder = folder_of(sentence_encoder(tmp_path / "a"), tmp_path / "b", max_seq_length=value)
    with pytest.raises(conserva.Error, match=r"has max_seq_length = .*: give a number of tokens"):
        conserva.load(folder)


@pytest.mark.parametrize("make", [cross_encoder, sentence_encoder])
@pytest.mark.parametrize(
    ("file", "settings", "says"),
    [
        (
            SETTINGS,
            {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
            "puts the prompt 'query: ' before every text, which is not supported: give conserva.load the object",
        ),
        (READING, {"processing_kwargs": {"text": {"max_length": 9}}}, "with processing_kwargs for max_length"),
        (READING, {"processing_kwargs": {"common": {"truncation": False}}}, "with processing_kwargs for truncation"),
    ],
)
def test_what_changes_the_tokens_is_refused(
    tmp_path: Path, make: Callable[..., Any], file: str, settings: dict[str, Any], says: str
) -> None:
    folder = folder_of(make(tmp_path / "a"), tmp_path / "b", file, **settings)
    with pytest.raises(conserva.Error, match=says):
        conserva.load(folder)


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        (SETTINGS, {"prompts": {"query": "query: "}, "default_prompt_name": None}),
        (SETTINGS, {"prompts": {"query": ""}, "default_prompt_name": "query"}),
        (READING, {"processing_kwargs": {"text": {"padding": "longest"}}}),
        (READING, {"do_lower_case": True}),  # as the tokenizer does
    ],
)
def test_what_does_not_change_them_is_not(tmp_path: Path, file: str, settings: dict[str, Any]) -> None:
    folder = folder_of(sentence_encoder(tmp_path / "a"), tmp_path / "b", file, **settings)
    one = conserva.explain(conserva.load(folder), PAIR)
    assert one.output == pytest.approx(predicted(folder, SentenceTransformer), **EXACT)


def test_lowercasing_before_a_tokenizer_of_cased_texts_is_refused(tmp_path: Path) -> None:
    folder = folder_of(sentence_encoder(tmp_path / "a"), tmp_path / "b", do_lower_case=True)
    cased = tiny_heads.tokenizer().backend_tokenizer
    changed = json.loads(cased.to_str())
    changed["normalizer"] = None
    (folder / "tokenizer.json").write_text(json.dumps(changed))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**settings, "tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False})
    )
    with pytest.raises(conserva.Error, match=r"lowercases texts before its tokenizer: give conserva\.load the model"):
        conserva.load(folder)


@pytest.mark.parametrize("size", [0, "5", True])
def test_a_truncation_that_is_not_one_is_refused(tmp_path: Path, size: Any) -> None:
    folder = folder_of(sentence_encoder(tmp_path / "a"), tmp_path / "b", SETTINGS, truncate_dim=size)
    with pytest.raises(conserva.Error, match=r"has truncate_dim = .*: give a number of dimensions"):
        conserva.load(folder)


@pytest.mark.parametrize("settings", [[], "text", 7])
def test_settings_that_are_not_an_object_are_no_settings(tmp_path: Path, settings: Any) -> None:
    folder = folder_of(sentence_encoder(tmp_path / "a"), tmp_path / "b")
    for file in (READING, SETTINGS):
        (folder / file).write_text(json.dumps(settings))
    assert conserva.load(folder).options == {"pooling": "mean", "score": "cosine"}


# The same in memory.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"text": {"max_length": 9}}, "processing_kwargs for max_length"),
        ({"text": {"add_special_tokens": False}}, "processing_kwargs for add_special_tokens"),
        ({"common": {"truncation": False}}, "processing_kwargs for truncation"),
        ({"text": {"padding": True}}, None),
    ],
)
def test_options_of_the_tokenizer_in_memory(tmp_path: Path, options: dict[str, Any], says: str | None) -> None:
    with quiet_loading():
        first = Transformer(
            saved(tmp_path, classifier(num_labels=1)),
            transformer_task="sequence-classification",
            processing_kwargs=options,
        )
        model = CrossEncoder(modules=[first], device="cpu")
    if says is None:
        one = conserva.explain(conserva.load(model), PAIR)
        assert one.output == pytest.approx(float(model.predict(PAIR, activation_fn=nn.Identity())), **EXACT)
        return
    with pytest.raises(conserva.Error, match=says):
        conserva.load(model)


def test_a_text_that_is_changed_before_the_tokenizer_is_refused(tmp_path: Path) -> None:
    model = sentence_encoder(tmp_path)
    read = model[0].preprocess
    tokenizer = model.tokenizer
    tokenizer.backend_tokenizer.normalizer = None
    model[0].preprocess = lambda texts, **options: read([text.lower() for text in texts], **options)
    with pytest.raises(conserva.Error, match="whose tokens are not those of its tokenizer"):
        conserva.load(model)


@pytest.mark.parametrize("make", [cross_encoder, sentence_encoder])
def test_the_advice_for_what_is_refused_works(tmp_path: Path, make: Callable[..., Any]) -> None:
    model = make(tmp_path, prompts={"query": "query: "}, default_prompt_name="query")
    tokens = "is a (CrossEncoder|SentenceTransformer) whose tokens are not those of its tokenizer"
    with pytest.raises(conserva.Error, match="default_prompt_name = None"):
        conserva.load(model)
    model.default_prompt_name = None
    assert conserva.load(model)
    read = model[0].preprocess
    model[0].preprocess = lambda texts, **options: read(["chat" for _ in texts], **options)
    with pytest.raises(conserva.Error, match=tokens) as error:
        conserva.load(model)
    advice = str(error.value).rpartition(", as ")[2].removesuffix(".")
    task = eval(advice, {"conserva": conserva, "model": model})
    assert conserva.explain(task, PAIR).ledger
