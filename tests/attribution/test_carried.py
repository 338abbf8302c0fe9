"""Corners of carried relevance that whole models seldom reach."""

from __future__ import annotations

import pytest
import torch

from conserva.attribution.carried import Carrier
from conserva.engine.constants import Unbatchable
from conserva.engine.sources import Sources


def carrier(samples: int = 1) -> Carrier:
    return Carrier(Sources({}, {}, False, ()), samples, set())


def test_factors_of_a_constant_product_count() -> None:
    x, b, w = torch.randn(3, 3).requires_grad_(), torch.randn(3, 3), torch.randn(3, 3)
    with carrier():
        out = x + torch.addmm(b, b, w, beta=0.5, alpha=2)
    torch.testing.assert_close(out, x + 0.5 * b + 2 * b @ w)


def test_a_scaled_summand_keeps_its_relevance() -> None:
    x, b, w = torch.rand(3, 3).requires_grad_(), torch.rand(3, 3), torch.zeros(3, 3)
    with carrier():
        out = torch.addmm(x, b, w, beta=0.5)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], torch.ones(3, 3))


def test_a_difference_with_a_factor_shares_by_what_it_subtracts() -> None:
    x, y = (torch.rand(1, 4).add(0.1).requires_grad_() for _ in range(2))
    relevance = torch.rand(1, 4)
    with carrier():
        out = torch.rsub(x, y, alpha=2)
    found = torch.autograd.grad(out, (x, y), relevance)
    with carrier():
        spelled = y + (-2 * x)
    expected = torch.autograd.grad(spelled, (x, y), relevance)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("move", [lambda x: x.T, lambda x: x.transpose(0, 1), lambda x: x.mT], ids=["T", "call", "mT"])
def test_samples_that_were_moved_are_not_coupled(move) -> None:
    x, y = torch.randn(2, 2).requires_grad_(), torch.randn(2, 2).requires_grad_()
    with carrier(2), pytest.raises(Unbatchable):
        move(x) + move(y)


def test_a_gate_whose_source_changed_in_place() -> None:
    x, y = torch.randn(4).requires_grad_(), torch.randn(4).requires_grad_()
    with carrier():
        h = x.clone()
        gate = torch.sigmoid(h)
        h += y
        out = gate * 2
    of_x, of_y = torch.autograd.grad(out.sum(), (x, y), allow_unused=True)
    assert of_y is None or (of_y == 0).all()
    torch.testing.assert_close(of_x, torch.ones(4))
