"""What tests share: spelled models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
from tiny import shake


class Plain(nn.Module):
    """Two layers of attention, norm and gated MLP; the second spells one of them in its own way."""

    def __init__(
        self,
        softmax: Callable[[Tensor], Tensor] | None = None,
        norm: Callable[[Tensor], Tensor] | None = None,
        activation: Callable[[Tensor], Tensor] | None = None,
        width: int = 8,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(40, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(width, width) for name in ("q", "k", "v", "o", "up", "gate", "down")})
            for _ in range(2)
        )
        self.out = nn.Linear(width, 3)
        self.spelled = {"softmax": softmax, "norm": norm, "activation": activation}

    def part(self, name: str, layer: int) -> Callable[[Tensor], Tensor]:
        return (self.spelled[name] if layer else None) or PLAIN[name]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for i, layer in enumerate(self.layers):
            softmax, norm, activation = (self.part(name, i) for name in ("softmax", "norm", "activation"))
            q, k, v = (layer[name](norm(x)).unflatten(-1, (2, -1)).transpose(1, 2) for name in "qkv")
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            x = x + layer["o"]((softmax(scores) @ v).transpose(1, 2).flatten(2))
            h = norm(x)
            x = x + layer["down"](activation(layer["up"](h)))
        return self.out(x.mean(1))


PLAIN = {"softmax": lambda s: s.softmax(-1), "norm": lambda x: F.layer_norm(x, x.shape[-1:]), "activation": F.silu}


def explained(model: nn.Module, rules: str, **how: Any) -> Tensor:
    ids = torch.tensor([[3, 7, 1, 9, 4]])
    return conserva.relevance(shake(model.double()), ids, 1, rules=conserva.rules(rules, **how)).scores()


def assert_same(spelled: nn.Module, plain: nn.Module, rules: str) -> None:
    expected = explained(plain, rules)
    found = explained(spelled, rules)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
