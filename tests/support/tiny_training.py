"""What tests of trainers share: a tiny classifier with dropout, and encoded lines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import tiny_heads
from training_data import LINES

INPUTS, TARGETS = ["a joy", "a dull film"], ["positive", "negative"]


def network() -> BertForSequenceClassification:
    """Return an untrained classifier in training mode, for the tokenizer of the bundled one."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    labels = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
    return BertForSequenceClassification(BertConfig(vocab_size=12000, **sizes, **labels))


def examples(first: int, last: int) -> list[dict[str, Any]]:
    """Return encoded lines with labels, as the Trainer of transformers takes them."""
    encode = tiny_heads.tokenizer()
    return [{**encode(text), "labels": label} for text, label in LINES[first:last]]


def batch(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Collate the result of `examples`."""
    return dict(tiny_heads.tokenizer().pad(rows, return_tensors="pt"))


class Draws(nn.Module):
    """Draws a random number that has no effect, whatever the mode is."""

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(1)
        return x


def drawing(model: Any) -> Any:
    """Return a classifier whose forward pass draws random numbers without using them."""
    model.bert.pooler.activation = nn.Sequential(nn.Tanh(), Draws())
    return model


def equal(a: Any, b: Any) -> bool:
    """Return whether two structures of dictionaries, lists and tensors are bitwise equal."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    return bool(a == b)
