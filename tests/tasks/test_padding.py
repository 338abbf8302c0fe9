"""Texts of different lengths in one batch: models whose output depends on the padding are refused, all others agree."""

from __future__ import annotations

import copy

import pytest

import conserva
import tiny_heads

TEXTS = ["an unwatchably long film.", "a joy.", "a joy of a film, and long."]


def task_of(kind: str) -> conserva.Text:
    model = tiny_heads.model(kind, "AutoModelForSequenceClassification")
    model.config.pad_token_id = 0
    return conserva.Text(model, tiny_heads.tokenizer(), kind)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "roberta", "bart", "xlm", "openai-gpt", "deberta-v2"])
def test_a_text_in_a_padded_batch_equals_the_text_alone(kind: str) -> None:
    task = task_of(kind)
    for one, text in zip(conserva.explain(task, TEXTS, 0), TEXTS, strict=True):
        alone = conserva.explain(task, text, 0)
        assert one.output == pytest.approx(alone.output, abs=1e-4)
        assert one.scores == pytest.approx(alone.scores, abs=1e-4)


@pytest.mark.parametrize("kind", ["xlnet", "funnel"])
def test_models_that_read_the_padding_are_refused(kind: str) -> None:
    task = task_of(kind)
    method = "gi" if kind == "funnel" else "exact"
    for _ in range(2):  # a refused model stays refused
        with pytest.raises(conserva.Error, match=r"changes by [\d.e-]+ if the text is padded.*batch_tokens=1"):
            conserva.explain(task, TEXTS, 0, method=method)
    with pytest.raises(conserva.Error, match="is padded"):
        conserva.evaluate(task, [(text, 0) for text in TEXTS], ["gi"], reference=False)
    many = conserva.explain(task, TEXTS, 0, method=method, batch_tokens=1)
    assert [one.output for one in many] == [conserva.explain(task, text, 0, method=method).output for text in TEXTS]
    assert conserva.explain(task, ["a joy.", "a bore."], 0, method=method)  # of one length


def test_rounding_in_half_precision_is_no_change() -> None:
    full = task_of("bert")
    half = conserva.Text(copy.deepcopy(full.network).bfloat16(), full.tokenizer)
    assert len(conserva.explain(half, TEXTS, 0)) == 3
