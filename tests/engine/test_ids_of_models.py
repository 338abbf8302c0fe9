"""Hugging Face models that shift, flatten or reuse their ids: each share goes to the word that it came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    BertConfig,
    BertForMultipleChoice,
    MBartConfig,
    MBartForSequenceClassification,
    MT5Config,
    MT5ForSequenceClassification,
    PLBartConfig,
    PLBartForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
    T5ForSequenceClassification,
)

import conserva
from tiny import bert, shake, tokens

CLOSE = {"rtol": 1e-9, "atol": 1e-12}

SMALL = {"vocab_size": 50, "d_model": 16, "num_labels": 3, "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0}
BART_LIKE = {
    **SMALL, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 64, "decoder_start_token_id": 2,
}  # fmt: skip
T5_LIKE = {
    "vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "num_labels": 3,
    "decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 1,
}  # fmt: skip

TWICE: dict[str, Callable[[], nn.Module]] = {
    "bart": lambda: BartForSequenceClassification(BartConfig(**BART_LIKE)),
    "mbart": lambda: MBartForSequenceClassification(MBartConfig(**BART_LIKE)),
    "plbart": lambda: PLBartForSequenceClassification(PLBartConfig(**BART_LIKE)),
    "t5": lambda: T5ForSequenceClassification(T5Config(**T5_LIKE)),
    "mt5": lambda: MT5ForSequenceClassification(MT5Config(**T5_LIKE)),
}  # fmt: skip


def gradients_at_words(model: nn.Module, call: Callable[[], Tensor], vocabulary: int) -> list[tuple[Tensor, Tensor]]:
    """Run a model; return the ids of every look-up in a table of words, and Gradient x Input there."""
    caught: list[tuple[Tensor, Tensor]] = []

    def catch(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        rows = out.detach().requires_grad_()
        caught.append((args[0], rows))
        return rows * 1

    tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m.num_embeddings == vocabulary]
    handles = [table.register_forward_hook(catch) for table in tables]
    call().sum().backward()
    for handle in handles:
        handle.remove()
    return [(ids, (rows * rows.grad).sum(-1).detach()) for ids, rows in caught]


@pytest.mark.parametrize("name", TWICE)
def test_words_that_the_decoder_reads_too_get_both_shares(name: str) -> None:
    torch.manual_seed(0)
    model = shake(TWICE[name]().double(), 0.1)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    ids = torch.tensor([[5, 9, 7, 8, 30, 2], [11, 12, 13, 14, 15, 2]])
    result = conserva.relevance(model, {"input_ids": ids}, 1, rules="gi")
    (_, encoder), (second, decoder) = gradients_at_words(model, lambda: model(input_ids=ids).logits[:, 1], 50)
    assert encoder.shape[1] >= 6
    assert torch.equal(second[:, 1:6], ids[:, :5]) or name in ("mbart", "plbart")
    expected = encoder[:, :6].clone()
    if name in ("mbart", "plbart"):  # which turn the last word to the front
        expected[:, :5] += decoder[:, 1:6]
        expected[:, 5] += decoder[:, 0]
    else:
        expected[:, :5] += decoder[:, 1:6]
    torch.testing.assert_close(result.scores(), expected, rtol=1e-7, atol=1e-10)
    assert result.values["input_ids#2"].shape[:2] == ids.shape
    assert conserva.relevance(model, {"input_ids": ids}, 1, rules="exact").ledger.gap.abs().max() < 1e-7


def test_labels_that_a_decoder_reads_are_an_input() -> None:
    torch.manual_seed(0)
    model = shake(T5ForConditionalGeneration(T5Config(**T5_LIKE)).double(), 0.1)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    ids, labels = torch.tensor([[5, 9, 7, 2]]), torch.tensor([[4, 8, 3, -100]])
    inputs = {"input_ids": ids, "labels": labels}
    target = lambda output: output.logits[:, -1, 7]  # noqa: E731
    result = conserva.relevance(model, inputs, target, rules="gi")
    (_, encoder), (_, decoder) = gradients_at_words(model, lambda: target(model(**inputs)), 50)
    torch.testing.assert_close(result.scores("input_ids"), encoder, rtol=1e-7, atol=1e-10)
    expected = torch.cat([decoder[:, 1:], torch.zeros(1, 1).double()], 1)
    torch.testing.assert_close(result.scores("labels"), expected, rtol=1e-7, atol=1e-10)
    assert set(result.inputs) == {"input_ids", "labels"}
    assert type(labels) is Tensor


def test_labels_that_are_only_compared_with_are_not() -> None:
    result = conserva.relevance(bert(), {**tokens(), "labels": torch.tensor([0, 1, 2])}, 1)
    assert set(result.inputs) == {"input_ids"}


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_choices_keep_their_shape(samples: int) -> None:
    torch.manual_seed(0)
    settings = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = shake(BertForMultipleChoice(BertConfig(**settings, intermediate_size=24)).double())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    ids = torch.randint(3, 50, (samples, 2, 5))
    result = conserva.relevance(model, {"input_ids": ids}, 1, rules="gi")
    assert result.scores().shape == ids.shape
    ((_, expected),) = gradients_at_words(model, lambda: model(input_ids=ids).logits[:, 1], 50)
    torch.testing.assert_close(result.scores(), expected.view(ids.shape), **CLOSE)
    assert (result.scores()[:, 0] == 0).all()
    together = conserva.relevance(model, {"input_ids": ids}, 1, rules="exact").ledger
    for i in range(samples):
        alone = conserva.relevance(model, {"input_ids": ids[i : i + 1]}, 1, rules="exact").ledger
        torch.testing.assert_close(together.biases[i], alone.biases[0], rtol=1e-7, atol=1e-10)
