"""What a model makes from its input without a gradient: constant as a factor, refused as a summand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
from conserva.auditing.second_opinion import verify
from tiny import shake

IDS = torch.tensor([[3, 7, 1, 9, 4]])


class Layer(nn.Module):
    """Attention, and something that is made of the states."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.words, self.mix, self.out = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.function = function

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + F.scaled_dot_product_attention(x, x, x)
        return self.out(self.function(self, x).mean(1))


def under_no_grad(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        lost = model.mix(x).tanh()
    return x + lost


def through_a_layer(model: nn.Module, x: Tensor) -> Tensor:
    return x + model.mix(x.detach())


def joined(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([x, x.detach().tanh()], 1)


def assigned(model: nn.Module, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = x[:, 1].detach()
    return y


def chosen(model: nn.Module, x: Tensor) -> Tensor:
    return torch.where(x > 0, x, x.detach())


def straight_through(model: nn.Module, x: Tensor) -> Tensor:
    return x + (x.round() - x).detach()


def a_kernel_without_gradient(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        attention = F.scaled_dot_product_attention(x, x, x)
    return x + model.mix(attention)


LOST = [under_no_grad, through_a_layer, joined, assigned, chosen, straight_through, a_kernel_without_gradient]


@pytest.mark.parametrize("rules", ["exact", "ah+ln"])
@pytest.mark.parametrize("function", LOST)
def test_summands_are_refused(function: Callable[[nn.Module, Tensor], Tensor], rules: str) -> None:
    with pytest.raises(conserva.Error, match=r"from its input without a gradient.* Found in Layer itself"):
        conserva.relevance(shake(Layer(function)), IDS, 1, rules=rules)


def a_scale(model: nn.Module, x: Tensor) -> Tensor:
    return x / x.detach().norm(dim=-1, keepdim=True)


def a_stable_softmax(model: nn.Module, x: Tensor) -> Tensor:
    scores = x @ x.mT
    scores = scores - scores.max(-1, keepdim=True).values.detach()
    return torch.softmax(scores, -1) @ x


def shape_alone(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        zeros = torch.zeros_like(x) + 0.5
    return x + zeros


@pytest.mark.parametrize("rules", ["exact", "ah+ln"])
@pytest.mark.parametrize("function", [a_scale, a_stable_softmax, shape_alone])
def test_factors_and_what_changes_nothing_are_not(function: Callable[[nn.Module, Tensor], Tensor], rules: str) -> None:
    opinion = verify(shake(Layer(function).double()), IDS, 1, rules=rules)
    assert opinion.error < 1e-6
    if rules == "exact":
        assert opinion.relevance.ledger.gap.abs().max() < 1e-12


def test_the_plain_gradient_takes_them_as_they_are() -> None:
    model = shake(Layer(straight_through).double())
    result = conserva.relevance(model, IDS, 1, rules="gi")
    x = model.words(IDS).detach().requires_grad_()
    model.words = nn.Identity()
    (grad,) = torch.autograd.grad(model(x)[0, 1], x)
    torch.testing.assert_close(result.values["ids"], (x * grad).detach())
