"""Compiled functions inside a model are refused in words, and explained once they are run as plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
from tiny import HandWritten, shake


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Compiled(HandWritten):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.part = Calls(function)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.out(self.norm(self.part(x) + F.scaled_dot_product_attention(x, x, x)).mean(1))


def gelu(x: Tensor) -> Tensor:
    return 2 * F.gelu(x)


def residual(x: Tensor) -> Tensor:
    return x + torch.tanh(x) * F.silu(x)


def attention(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.transpose(1, 2), -1) @ x


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (12,), torch.ones(12), torch.ones(12))


FUNCTIONS = (gelu, residual, attention, norm)
WAYS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"},
    "aot": {"backend": "aot_eager"},
    "dynamic": {"backend": "eager", "dynamic": True},
    "whole": {"backend": "eager", "fullgraph": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_compiled_functions_are_read_right_or_refused_in_words(function: Callable, way: str) -> None:
    torch._dynamo.reset()
    model = shake(Compiled(torch.compile(function, **WAYS[way])))
    plain = Compiled(function).eval()
    plain.load_state_dict(model.state_dict())
    ids = torch.randint(0, 50, (2, 5))
    expected = conserva.relevance(plain, ids, 1, rules="exact")
    try:
        found = conserva.relevance(model, ids, 1, rules="exact")
    except conserva.Error as error:
        assert "compiled" in str(error)  # noqa: PT017
        assert "force_eager" in str(error) or "plain PyTorch" in str(error)  # noqa: PT017
    else:  # torch's compiler followed the rules
        torch.testing.assert_close(found.scores(), expected.scores(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.ledger.gap, expected.ledger.gap, rtol=1e-4, atol=1e-5)
    with torch.compiler.set_stance("force_eager"):
        found = conserva.relevance(model, ids, 1, rules="exact")
    torch.testing.assert_close(found.scores(), expected.scores(), rtol=1e-5, atol=1e-7)
    torch._dynamo.reset()


def test_the_module_that_calls_it_is_named() -> None:
    torch._dynamo.reset()
    model = shake(Compiled(torch.compile(gelu, backend="eager")))
    with pytest.raises(conserva.Error, match="module 'part' calls is compiled"):
        conserva.relevance(model, torch.randint(0, 50, (2, 5)), 1, rules="exact")
    torch._dynamo.reset()


def test_errors_of_the_model_itself_are_its_own() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ZeroDivisionError("its own")

    with pytest.raises(ZeroDivisionError, match="its own"):
        conserva.relevance(shake(Compiled(fails)), torch.randint(0, 50, (2, 5)), 1)
