"""Activations in many spellings: each is read as torch's own call, or refused in words."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
from conserva.engine.operations.elementwise import coefficient
from spelled_models import Plain, assert_same, explained


def silu_in_place(x: Tensor) -> Tensor:
    return torch.sigmoid(x).mul_(x)


def silu_on_itself(x: Tensor) -> Tensor:
    y = x.clone()
    return y.mul_(torch.sigmoid(y))


def silu_through_a_view(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    y[:] = torch.sigmoid(x)
    return y * x


SILUS: dict[str, Callable[[Tensor], Tensor]] = {
    "product": lambda x: x * x.sigmoid(),
    "in place": silu_in_place,
    "on itself": silu_on_itself,
    "cast there and back": lambda x: x * torch.sigmoid(x.float()).to(x.dtype),
    "in single precision": lambda x: (x.float() * torch.sigmoid(x.float())).to(x.dtype),
    "of a view": lambda x: (torch.sigmoid(x.view(-1)) * x.view(-1)).view_as(x),
    "a view of it": lambda x: (torch.sigmoid(x).view(-1) * x.view(-1)).view_as(x),
    "of a clone": lambda x: x.clone() * torch.sigmoid(x.clone()),
    "contiguous": lambda x: x.contiguous() * torch.sigmoid(x).contiguous(),
    "transposed": lambda x: (torch.sigmoid(x.transpose(1, 2)) * x.transpose(1, 2)).transpose(1, 2),
    "flattened": lambda x: (torch.sigmoid(x.flatten(1)) * x.flatten(1)).view_as(x),
    "einsum": lambda x: torch.einsum("bld,bld->bld", x, torch.sigmoid(x)),
    "by exp": lambda x: x / (1 + torch.exp(-x)),
    "by tanh": lambda x: 0.5 * x * (1 + torch.tanh(x / 2)),
    "addcmul": lambda x: torch.addcmul(torch.zeros_like(x), x, torch.sigmoid(x)),
    "sliced": lambda x: x[..., :] * torch.sigmoid(x)[..., :],
    "a tensor of one": lambda x: x / (torch.tensor(1.0) + torch.exp(-x)),
    "unsqueezed": lambda x: (x.unsqueeze(0) * torch.sigmoid(x).unsqueeze(0)).squeeze(0),
    "half and half": lambda x: x * torch.sigmoid(x) * 0.5 + 0.5 * (x * torch.sigmoid(x)),
    "logsigmoid": lambda x: x * F.logsigmoid(x).exp(),
}


def roundly(name: str) -> float:
    return 1e-5 if "precision" in name or "cast" in name else 1e-9


@pytest.mark.parametrize("rules", ["exact", "attnlrp", "ah+ln"])
@pytest.mark.parametrize("name", SILUS)
def test_an_activation_in_any_spelling_is_an_activation(name: str, rules: str) -> None:
    torch.manual_seed(0)
    spelled, plain = Plain(activation=SILUS[name]), Plain()
    plain.load_state_dict(spelled.state_dict())
    if name == "in place" and rules == "ah+ln":
        with pytest.raises(conserva.Error, match="changes a tensor in place that its own gradient needs"):
            explained(spelled, rules)  # as torch does itself
        return
    expected, found = explained(plain, rules), explained(spelled, rules)
    torch.testing.assert_close(found, expected, rtol=roundly(name), atol=roundly(name))


BY_HAND: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "hardswish": (lambda x: x * F.relu6(x + 3) / 6, F.hardswish),
    "hardswish by clamp": (lambda x: x * (x + 3).clamp(0, 6) / 6, F.hardswish),
    "gelu": (lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), F.gelu),
    "gelu by tensors": (lambda x: x * 0.5 * (1 + torch.erf(x / torch.sqrt(torch.tensor(2.0).to(x)))), F.gelu),
    "mish": (lambda x: x * torch.tanh(F.softplus(x)), F.mish),
    "softsign": (lambda x: x / (1 + x.abs()), F.softsign),
    "squared relu": (lambda x: F.relu(x) * F.relu(x), lambda x: F.relu(x).square()),
    "softplus": (lambda x: torch.log(1 + x.exp()), F.softplus),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_activations_written_by_hand(name: str) -> None:
    torch.manual_seed(0)
    by_hand, own = BY_HAND[name]
    spelled, plain = Plain(activation=by_hand), Plain(activation=own)
    plain.load_state_dict(spelled.state_dict())
    assert_same(spelled, plain, "exact")


class Beta(nn.Module):
    """An activation with a parameter of its own."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.beta, self.function = nn.Parameter(torch.ones(8)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.beta)


@pytest.mark.parametrize(
    "activation",
    [
        Beta(lambda x, beta: x * torch.sigmoid(beta * x)),
        Beta(lambda x, beta: x + torch.sin(beta * x) ** 2 * x),
        lambda x: x[torch.arange(1)] * torch.sigmoid(x[torch.tensor([0])]),
        lambda x: torch.cat([x * torch.sigmoid(torch.cat([x]))]),
        lambda x: x * torch.cat([part.sigmoid() for part in x.chunk(2, -1)], -1),
        lambda x: x * torch.stack([part.sigmoid() for part in x.unbind(-1)], -1),
    ],
    ids=["a swish that learns", "a snake that learns", "picked by number", "concatenated", "in chunks", "one by one"],
)
def test_an_activation_that_is_not_recognised_is_refused(activation: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model = Plain()
    model.spelled["activation"] = activation
    with pytest.raises(conserva.Error, match="is an activation, written in a way"):
        explained(model, "exact")


@pytest.mark.parametrize("function", [torch.log, torch.reciprocal, torch.rsqrt, lambda x: 2 / x, lambda x: x**-1.5])
def test_a_function_without_a_value_at_zero_is_refused_under_exact(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    with pytest.raises(conserva.Error, match="not finite at 0"):
        explained(Plain(activation=lambda x: function(x.abs())), "exact")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("function", "slope"), [(F.gelu, 0.5), (F.silu, 0.5), (torch.tanh, 1.0), (torch.asinh, 1.0)])
def test_the_ratio_at_zero_is_the_slope(function: Callable[[Tensor], Tensor], slope: float, dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -2.0], dtype=dtype)
    ratio = coefficient(x, function(x), 0.0, slope)
    assert ratio.dtype == dtype
    assert ratio[:2].tolist() == [slope, slope]
    torch.testing.assert_close(ratio[2:], function(x[2:]) / x[2:], rtol=0, atol=0)
