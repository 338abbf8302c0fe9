"""Tensors that require a gradient and are neither explained nor parameters are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
from tiny import HandWritten, bert, shake, tokens

OUTSIDE = torch.randn(12, requires_grad=True)


class Weighted(HandWritten):
    """A model with one more weight, kept in some way."""

    def __init__(self, keep: Callable[[Weighted], None], use: Callable[[Weighted, Tensor], Tensor]) -> None:
        super().__init__()
        keep(self)
        self.use = use

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.out(self.norm(self.use(self, x) + F.scaled_dot_product_attention(x, x, x)).mean(1))


def weight(shape: tuple[int, ...] = (12,)) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def keep(name: str, make: Callable[[], object]) -> Callable[[nn.Module], None]:
    return lambda model: setattr(model, name, make())


def doubled() -> Tensor:
    return 2 * weight()


UNKNOWN = {
    "an attribute": (keep("scale", weight), lambda m, x: x * m.scale, "'scale'"),
    "a buffer": (lambda m: m.register_buffer("scale", weight()), lambda m, x: x * m.scale, "'scale'"),
    "in a list": (keep("scales", lambda: [weight(), weight()]), lambda m, x: x * m.scales[1], "'scales'"),
    "in a dict": (keep("scales", lambda: {"a": weight()}), lambda m, x: x * m.scales["a"], "'scales'"),
    "a matrix": (keep("matrix", lambda: weight((12, 12))), lambda m, x: x @ m.matrix, "'matrix'"),
    "of a linear layer": (keep("matrix", lambda: weight((12, 12))), lambda m, x: F.linear(x, m.matrix), "'matrix'"),
    "added": (keep("more", weight), lambda m, x: x + m.more, "'more'"),
    "outside the model": (lambda m: None, lambda m, x: x * OUTSIDE, r"shape \(12,\)"),
    "made of another": (keep("scale", doubled), lambda m, x: x * m.scale, r"shape \(12,\)"),
    "in a module": (
        lambda m: (setattr(m, "part", nn.Identity()), setattr(m.part, "scale", weight())),
        lambda m, x: x * m.part.scale, "'part.scale'"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("rules", ["gi", "exact"])
def test_weights_that_are_no_parameters_are_refused_by_name(name: str, rules: str) -> None:
    how, use, said = UNKNOWN[name]
    model = shake(Weighted(how, use))
    with pytest.raises(conserva.Error, match=rf"{said}.*requires a gradient and is not an nn\.Parameter"):
        conserva.relevance(model, torch.randint(0, 50, (2, 5)), 1, rules=rules)


def test_an_argument_that_requires_a_gradient_is_a_constant() -> None:
    class Masked(HandWritten):
        def forward(self, ids: Tensor, soft_mask: Tensor) -> Tensor:
            return super().forward(ids) * soft_mask

    ids, mask = torch.randint(0, 50, (2, 5)), torch.ones(2, 1, requires_grad=True)
    model = shake(Masked())
    found, expected = (
        conserva.relevance(model, {"ids": ids, "soft_mask": one}, 1, rules="exact") for one in (mask, mask.detach())
    )
    assert mask.grad is None
    assert torch.equal(found.scores(), expected.scores())
    assert found.ledger.gap.abs().max() < 1e-5


def test_explained_numbers_may_require_a_gradient() -> None:
    model = bert()
    x = model.get_input_embeddings()(tokens()["input_ids"])
    assert x.requires_grad
    for at in ("inputs", "bert.encoder.layer.0", "embeddings"):
        assert conserva.relevance(model, {"inputs_embeds": x}, 1, rules="exact", at=at).ledger.gap.abs().max() < 1e-5
