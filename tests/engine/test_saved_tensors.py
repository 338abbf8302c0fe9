"""What a context keeps alive: no more than autograd needs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import conserva


class Saved:
    """A saved tensor, which is gone with the node that saved it."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


def saved_by(norm: Callable[[Tensor], Tensor], *, rules: Any) -> int:
    """Return how many elements are saved behind the output of three norms."""
    known: list[weakref.ref[Saved]] = []

    def pack(x: Tensor) -> Saved:
        saved = Saved(x.detach())  # a tensor that is saved by its own node would keep the node alive
        known.append(weakref.ref(saved))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.x):
        x = torch.randn(2, 5, 16, requires_grad=True)
        with conserva.rules(rules):
            for _ in range(3):
                x = norm(x)
            return sum(saved.x.numel() for one in known if (saved := one()) is not None)


@pytest.mark.parametrize("rules", ["exact", "ah+ln", "attnlrp"])
@pytest.mark.parametrize(
    "norm",
    [
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
        lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6) ** -0.5,
        lambda x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6),
        lambda x: x * torch.reciprocal(torch.sqrt((x * x).mean(-1, keepdim=True))),
    ],
    ids=["rsqrt", "power", "quotient", "reciprocal"],
)
def test_a_norm_keeps_its_scale_alone(norm: Callable[[Tensor], Tensor], rules: str) -> None:
    """The squares, whose mean the scale is, are not differentiated, and are freed as soon as the scale is used."""
    assert saved_by(norm, rules=rules) == 3 * 2 * 5
