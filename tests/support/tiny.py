"""Models small enough to reason about."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForSequenceClassification


def shake(model: nn.Module, size: float = 0.2) -> nn.Module:
    """Move every parameter off its special starting value."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator).to(parameter))
    return model.eval()


def bert(**changes: object) -> BertForSequenceClassification:
    settings = {
        "vocab_size": 99,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "id2label": {0: "negative", 1: "neutral", 2: "positive"},
        "label2id": {"negative": 0, "neutral": 1, "positive": 2},
        **changes,
    }
    torch.manual_seed(0)
    return shake(BertForSequenceClassification(BertConfig(**settings)))  # type: ignore[return-value]


def llama(**changes: object) -> LlamaForSequenceClassification:
    settings = {
        "vocab_size": 99,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "pad_token_id": 0,
        **changes,
    }
    torch.manual_seed(0)
    return shake(LlamaForSequenceClassification(LlamaConfig(**settings)))  # type: ignore[return-value]


def tokens(batch: int = 3, length: int = 7, seed: int = 0) -> dict[str, Tensor]:
    ids = torch.randint(5, 99, (batch, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class HandWritten(nn.Module):
    """A Transformer as one writes it by hand: einsum attention, a norm spelled out, a GELU spelled out."""

    def __init__(self, width: int = 12, heads: int = 3, words: int = 50, classes: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(1, 64, width))
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.gain = nn.Parameter(torch.randn(width))
        self.shift = nn.Parameter(torch.randn(width))
        self.out = nn.Linear(width, classes)

    def norm(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        deviation = torch.sqrt((x - mean).pow(2).mean(-1, keepdim=True) + 1e-5)
        return (x - mean) / deviation * self.gain + self.shift

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places[:, : ids.shape[1]]
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (q, k, v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
        heads = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
        x = x + self.mix(heads.flatten(2))
        u = self.up(self.norm(x))
        u = 0.5 * u * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (u + 0.044715 * torch.pow(u, 3.0))))
        x = x + self.down(u)
        return self.out(self.norm(x).mean(1))


class Classifier(nn.Module):
    """`nn.TransformerEncoder` with embeddings below and a linear layer above."""

    def __init__(self, batch_first: bool = True, activation: str = "gelu") -> None:
        super().__init__()
        self.batch_first = batch_first
        self.words = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.1, activation=activation, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 3)

    def forward(self, ids: Tensor, padding: Tensor | None = None) -> Tensor:
        x = self.encoder(self.words(ids), src_key_padding_mask=padding)
        return self.out(x[:, 0] if self.batch_first else x[0])


class Translator(nn.Module):
    """`nn.Transformer`: encoder, decoder, cross-attention, a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.transformer = nn.Transformer(16, 4, 1, 1, 24, batch_first=True)
        self.out = nn.Linear(16, 50)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(decoder_input_ids.shape[1])
        x = self.transformer(self.words(input_ids), self.words(decoder_input_ids), tgt_mask=mask, tgt_is_causal=True)
        return self.out(x[:, -1])


def attention_head(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, how: str) -> Tensor:
    """One head, written in three ways: with matmul and softmax, with einsum, or with the fused call."""
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    scale = 1 / math.sqrt(q.shape[-1])
    if how == "matmul":
        return F.softmax(q @ k.transpose(-1, -2) * scale, dim=-1) @ v
    if how == "einsum":
        return torch.einsum("ij,jd->id", torch.softmax(torch.einsum("id,jd->ij", q, k) * scale, -1), v)
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]
