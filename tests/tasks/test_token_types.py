"""Models get the token types of their tokenizer for single texts too, where they differ from the model's default."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

import conserva
import tiny_heads

TEXTS = ["an unwatchably long film.", "a joy."]
EXACT = {"rel": 1e-9, "abs": 1e-9}


def tokenizer(kind: str) -> Any:
    """Return a tokenizer with token types; that of XLNet ends texts with a token of type 2."""
    found = tiny_heads.tokenizer()
    if kind == "xlnet":
        found.backend_tokenizer.post_processor = TemplateProcessing(
            single="$A:0 [SEP]:0 [CLS]:2",
            pair="$A:0 [SEP]:0 $B:1 [SEP]:1 [CLS]:2",
            special_tokens=[("[SEP]", found.sep_token_id), ("[CLS]", found.cls_token_id)],
        )
    return found


def model(kind: str, auto: str = "AutoModelForSequenceClassification") -> Any:
    found = tiny_heads.model(kind, auto)
    found.config.pad_token_id = 0
    return found


KINDS = ["xlnet", "gpt2", "bert"]
"""With types other than 0; without a default for missing types; with one."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_output_is_that_of_the_model_for_the_output_of_the_tokenizer(kind: str) -> None:
    task = conserva.Text(model(kind), tokenizer(kind))
    inputs = task.tokenizer(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        logits = task.network(**inputs).logits[0]
    one = conserva.explain(task, TEXTS[0], 1)
    assert one.output == pytest.approx(float(logits[1]), **EXACT)
    found = conserva.relevance(task.network, dict(inputs), 1)
    assert list(one.scores) == pytest.approx(found.scores("input_ids")[0].tolist(), **EXACT)
    assert tiny_heads.closes(one)
    assert ("token_type_ids" in task.batch([task.encode(TEXTS[0])])) == (kind != "bert")
    with torch.no_grad():
        without = task.network(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[0]
    assert (abs(float(without[1]) - one.output) > 1e-3) == (kind != "bert")


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_batch_is_each_text_alone(kind: str) -> None:
    task = conserva.Text(model(kind), tokenizer(kind))
    many = conserva.explain(task, [*TEXTS, (TEXTS[1], TEXTS[0])], 0)
    for one, given in zip(many, [*TEXTS, (TEXTS[1], TEXTS[0])], strict=True):
        alone = conserva.explain(task, given, 0)
        assert list(one.scores) == pytest.approx(list(alone.scores), **EXACT)
        assert one.output == pytest.approx(alone.output, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task_class", [conserva.Text, conserva.Tokens])
def test_texts_without_tokens_removed_have_the_output_of_the_text(kind: str, task_class: Any) -> None:
    auto = f"AutoModelFor{'Sequence' if task_class is conserva.Text else 'Token'}Classification"
    task = task_class(model(kind, auto), tokenizer(kind))
    task.checks_padding = False  # xlnet reads the last token, which is not compared here
    encoded = [task.encode(text if task_class is conserva.Text else (text, 0)) for text in TEXTS]
    rows = [task.masked(one, np.ones((2, len(one)), bool), "drop") for one in encoded]
    chosen = [each[np.array([1])] for each in rows]
    with torch.no_grad():
        expected = task.model(**task.batch(encoded)).logits
        found = task.model(**task.stack(chosen)).logits
    torch.testing.assert_close(found, expected)
    assert len(rows[0].keys()) == 2
    assert (rows[0].types is None) == (kind == "bert")


@pytest.mark.parametrize("kind", KINDS)
def test_sentence_encoders_get_them(kind: str) -> None:
    task = conserva.Similarity(model(kind, "AutoModel"), tokenizer(kind))
    one = conserva.explain(task, (TEXTS[0], TEXTS[1]))
    with torch.no_grad():
        states = [task.network(**task.text.tokenizer(text, return_tensors="pt")).last_hidden_state for text in TEXTS]
    first, second = (x.mean(1)[0] for x in states)
    assert one.output == pytest.approx(float(torch.cosine_similarity(first, second, dim=0)), **EXACT)
    assert tiny_heads.closes(one)


@pytest.mark.parametrize("kind", ["xlnet", "gpt2"])
def test_windows_have_the_types_of_their_tokens(kind: str) -> None:
    task = conserva.Text(model(kind), tokenizer(kind))
    whole = conserva.explain(task, TEXTS[0] * 3, 1, windows=(12, 4))
    assert len(whole.windows) > 1
    assert whole.output == pytest.approx(sum(window.output for window in whole.windows) / len(whole.windows))
    (encoded,) = task.encode_whole([TEXTS[0] * 3])
    assert encoded.token_types is not None
    part = encoded.part(range(3, len(encoded)))
    assert part.token_types == encoded.token_types[3:]
    assert tiny_heads.closes(whole)


def test_evaluations_with_types_run() -> None:
    task = conserva.Text(model("xlnet"), tokenizer("xlnet"))
    found = conserva.evaluate(task, [(TEXTS[0], 0), (TEXTS[1], 1)], methods=["random", "exact"], batch_tokens=1)
    assert found
