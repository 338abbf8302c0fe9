"""Token classifiers as taggers: from labelled words to entities."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForTokenClassification

import conserva
from conserva import Error
from conserva.bias_study.tagger import entities, tagger_of
from conserva.tasks.loading import source_of


@pytest.mark.parametrize(
    ("labels", "found"),
    {
        "none": ("O O O", []),
        "one word": ("O B-PER O", [(2, 3, "PER")]),
        "two words": ("B-PER I-PER O", [(0, 3, "PER")]),
        "two entities": ("B-PER B-PER I-PER", [(0, 1, "PER"), (2, 5, "PER")]),
        "never begun": ("I-PER I-PER I-LOC", [(0, 3, "PER"), (4, 5, "LOC")]),
        "apart": ("I-PER O I-PER", [(0, 1, "PER"), (4, 5, "PER")]),
        "without B and I": ("PER PER LOC", [(0, 3, "PER"), (4, 5, "LOC")]),
    }.values(),
)
def test_labelled_words_make_entities(labels: str, found: list) -> None:
    assert entities([(2 * i, 2 * i + 1, label) for i, label in enumerate(labels.split())]) == found


def test_a_token_classifier_is_a_tagger(tmp_path: Path) -> None:
    tokenizer = conserva.load().tokenizer
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, max_position_embeddings=16, id2label={0: "O", 1: "B-PER"}, label2id={"O": 0, "B-PER": 1},
    )  # fmt: skip
    model = BertForTokenClassification(config)
    model.classifier.weight.data.zero_()
    model.classifier.bias.data[:] = torch.tensor([0.0, 1.0])
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "tagger")
    text = "kurosawa, " * 12 + "end"  # longer than the model takes at once
    found = tagger_of(tmp_path / "tagger")(text)
    assert [text[start:end] for start, end, _ in found] == ["kurosawa", ","] * 12 + ["end"]
    assert {group for _, _, group in found} == {"PER"}
    with pytest.raises(Error, match="tagger='nowhere/at-all' could not be loaded"):
        tagger_of("nowhere/at-all")
    with pytest.raises(Error, match="is not a token classifier"):
        tagger_of(source_of("sentiment"))
