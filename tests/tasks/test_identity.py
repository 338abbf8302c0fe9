"""What tells one run from another: a run that goes on has the same model, to the last setting, or is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import conserva
from conserva.tasks.fingerprint import identity_of
from conserva.tasks.loading import source_of

TEXTS = ["a joy.", "dull and grey", "eastwood at his best", "not eastwood"]

pytestmark = pytest.mark.usefixtures("few_resamples")


def sentiment(**changes: Any) -> tuple[Any, Any]:
    model = AutoModelForSequenceClassification.from_pretrained(
        source_of("sentiment"), dtype=torch.float32, **changes
    ).eval()
    return model, AutoTokenizer.from_pretrained(source_of("sentiment"))


def other_activation() -> conserva.Text:
    return conserva.Text(*sentiment(hidden_act="relu"), name="sentiment")


def other_norm() -> conserva.Text:
    return conserva.Text(*sentiment(layer_norm_eps=1e-3), name="sentiment")


def other_module() -> conserva.Text:
    """A model changed in memory: neither its weights nor its configuration tell."""
    model, tokenizer = sentiment()
    model.bert.encoder.layer[1].intermediate.intermediate_act_fn = torch.nn.ReLU()
    return conserva.Text(model.eval(), tokenizer, name="sentiment")


def other_weights() -> conserva.Text:
    model, tokenizer = sentiment()
    with torch.no_grad():
        model.classifier.bias[0] += 1e-6
    return conserva.Text(model, tokenizer, name="sentiment")


def other_tokenizer() -> conserva.Text:
    model, tokenizer = sentiment()
    tokenizer.add_tokens(["eastwood"])
    model.resize_token_embeddings(len(tokenizer))
    return conserva.Text(model, tokenizer, name="sentiment")


def other_case() -> conserva.Text:
    model, tokenizer = sentiment()
    settings = json.loads(tokenizer.backend_tokenizer.to_str())
    settings["normalizer"]["lowercase"] = not settings["normalizer"]["lowercase"]
    tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(settings))
    return conserva.Text(model, tokenizer, name="sentiment")


def other_head() -> conserva.Text:
    return conserva.Text(*sentiment(), name="sentiment", head="multi_label")


def other_labels() -> conserva.Text:
    return conserva.Text(*sentiment(id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1}), name="sentiment")


def other_dtype() -> conserva.Text:
    model, tokenizer = sentiment()
    return conserva.Text(model.double(), tokenizer, name="sentiment")


def other_attention() -> conserva.Text:
    return conserva.Text(*sentiment(attn_implementation="eager"), name="sentiment")


OTHERS = {
    other_activation: r'model\.configuration\.hidden_act \(was "gelu", is "relu"\)',
    other_norm: r"model\.configuration\.layer_norm_eps \(was 1e-12, is 0\.001\)",
    other_module: r"differs in model\.modules",
    other_weights: r"differs in model\.weights",
    other_tokenizer: r"model\.tokenizer",
    other_case: r"differs in model\.tokenizer",
    other_head: r'model\.head \(was "single_label", is "multi_label"\)',
    other_labels: r"model\.configuration\.id2label",
    other_dtype: r"model\.dtype",
    other_attention: r'model\.attention \(was "sdpa", is "eager"\)',
}


@pytest.mark.parametrize("other", OTHERS, ids=lambda one: one.__name__)
def test_an_evaluation_goes_on_with_the_same_model_only(other: Any, tmp_path: Path) -> None:
    task = conserva.Text(*sentiment(), name="sentiment")
    first = conserva.evaluate(task, TEXTS, ["gi"], reference=False, out=tmp_path)
    with pytest.raises(conserva.Error, match=OTHERS[other]):
        conserva.evaluate(other(), TEXTS, ["gi"], reference=False, out=tmp_path)
    assert conserva.evaluate(conserva.load(), TEXTS, ["gi"], reference=False, out=tmp_path).methods == first.methods


@pytest.mark.parametrize("other", [other_activation, other_module, other_case], ids=lambda one: one.__name__)
def test_a_bias_study_goes_on_with_the_same_model_only(other: Any, tmp_path: Path) -> None:
    groups = {"directors": ["Eastwood"]}
    conserva.bias(conserva.load(), TEXTS, groups, swaps=0, out=tmp_path)
    with pytest.raises(conserva.Error, match=OTHERS[other]):
        conserva.bias(other(), TEXTS, groups, swaps=0, out=tmp_path)


def test_an_identity_does_not_depend_on_what_was_asked() -> None:
    """Tokenizers remember the truncation and padding of their last call."""
    task = conserva.load()
    before = identity_of(task)
    task.tokenizer(["a", "b c d e"], padding=True, truncation=True, max_length=4)
    conserva.explain(task, TEXTS, truncate=True)
    assert identity_of(task) == before
    assert identity_of(conserva.load()) == before
    json.dumps(before)


@pytest.mark.parametrize("name", ["bace", "mnist", "digits"])
def test_other_bundled_models_have_one(name: str) -> None:
    found = identity_of(conserva.load(name))
    assert found == identity_of(conserva.load(name))
    assert found["weights"]
    assert ("image_processor" in found) == (name == "digits")


def test_an_altered_record_is_measured_again(tmp_path: Path) -> None:
    task = conserva.load()
    first = conserva.evaluate(task, TEXTS, ["gi"], reference=False, out=tmp_path)
    journal = tmp_path / "samples.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 2 * len(TEXTS)
    for number in range(1, len(lines)):
        altered = list(lines)
        altered[number] = altered[number].replace(b"0.", b"0.9", 1)
        assert altered != lines
        journal.write_bytes(b"".join(altered))
        assert conserva.evaluate(task, TEXTS, ["gi"], reference=False, out=tmp_path) == first
        assert len(journal.read_bytes().splitlines()) == len(lines) + 1
    journal.write_bytes(lines[0].replace(b"gelu", b"relu") + b"".join(lines[1:]))
    with pytest.raises(conserva.Error, match="its first line is damaged"):
        conserva.evaluate(task, TEXTS, ["gi"], reference=False, out=tmp_path)


def test_lines_of_another_run_do_not_count(tmp_path: Path) -> None:
    task = conserva.load()
    conserva.evaluate(other_activation(), TEXTS, ["gi"], reference=False, out=tmp_path / "relu")
    first = conserva.evaluate(task, TEXTS, ["gi"], reference=False, out=tmp_path / "gelu")
    theirs = (tmp_path / "relu" / "samples.jsonl").read_bytes().splitlines(keepends=True)
    journal = tmp_path / "gelu" / "samples.jsonl"
    ours = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(ours[0] + b"".join(theirs[1:]))
    assert conserva.evaluate(task, TEXTS, ["gi"], reference=False, out=tmp_path / "gelu") == first
