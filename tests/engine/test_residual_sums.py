"""The rule `gamma` at residual sums: what it computes, which sums it meets, and that the ledger closes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import conserva
from conserva.engine.operations.residual import code, shares
from conserva.engine.rules import rule_set
from tiny import bert, llama, shake, tokens

WIDTH = 6
numbers = st.floats(-1e3, 1e3, allow_subnormal=False)


def by_hand(a: float, b: float, gamma: float) -> tuple[float, float]:
    """The shares of both parts from LRP-gamma: R_a = a' / (a' + b') R, as a factor of the gradient R / z."""
    z = a + b
    if a * b >= 0:
        return 1.0, 1.0
    if z == 0:
        return 0.0, 0.0
    agreeing = a if a * z > 0 else b
    whole = z + gamma * agreeing
    return tuple(((1 + gamma) if part is agreeing else 1) * z / whole for part in (a, b))  # type: ignore[return-value]


@given(numbers, numbers, st.floats(0.01, 100))
def test_shares_are_those_of_lrp_gamma(a: float, b: float, gamma: float) -> None:
    wide = [torch.tensor([part], dtype=torch.float64) for part in (a, b)]
    found = shares(code(*wide, gamma), gamma)
    for part, share, expected in zip((a, b), found, by_hand(a, b, gamma), strict=True):  # of 1e-300 it may be rounded
        assert part * float(share) == pytest.approx(part * expected, rel=1e-9, abs=1e-12 * (abs(a) + abs(b)))
    assert all(0 <= float(one) <= 1 + 1e-12 for one in found)
    assert a * float(found[0]) + b * float(found[1]) == pytest.approx(a + b, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_shares_survive_the_precision_in_which_they_are_saved(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 1000)
    saved = code(a, b, 1.0).to(dtype).float()
    for one, exact in zip(shares(saved, 1.0), shares(code(a, b, 1.0), 1.0), strict=True):
        differs = (one - exact).abs() > 2 * torch.finfo(dtype).eps
        assert (torch.minimum(a.abs(), b.abs())[differs] < 2 * torch.finfo(dtype).eps * a.abs()[differs]).all()


class Layer(nn.Module):
    """Attention, and a body that adds something to its input."""

    def __init__(self, body: Callable[[Layer, Tensor], Tensor]) -> None:
        super().__init__()
        self.body = body
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)
        self.low, self.high = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, 3)
        self.places = nn.Parameter(torch.randn(4, WIDTH))
        self.register_buffer("wave", torch.randn(4, WIDTH))

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))

    def attention(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(self, self.attention(x))).sum(1)


def in_place(layer: Layer, x: Tensor) -> Tensor:
    y = layer.mlp(x)
    y += x
    return y


def into_trunk(layer: Layer, x: Tensor) -> Tensor:
    x = x * 1.0
    x.add_(layer.mlp(x))
    return x


def rotated(layer: Layer, x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * layer.wave.cos() + torch.cat([-second, first], -1) * layer.wave.sin()


RESIDUAL: dict[str, Callable[[Layer, Tensor], Tensor]] = {
    "norm before": lambda layer, x: x + layer.mlp(layer.norm(x)),
    "norm after": lambda layer, x: layer.norm(layer.mlp(x) + x),
    "torch.add": lambda layer, x: torch.add(layer.mlp(x), x),
    "in place": in_place,
    "into the trunk": into_trunk,
    "a trunk in another dtype": lambda layer, x: x.float().double() + layer.mlp(x.float().double()),
    "a scaled trunk": lambda layer, x: 0.5 * x + layer.mlp(x),
    "a scaled branch": lambda layer, x: x + 0.1 * layer.mlp(x),
    "two branches, one after the other": lambda layer, x: (layer.attention(x) + layer.mlp(x)) + x,
    "some positions": lambda layer, x: x[:, :2] + layer.mlp(x)[:, :2],
    "a convolution": lambda layer, x: x + F.conv1d(x.mT, torch.ones(WIDTH, 1, 3).to(x), padding=1, groups=WIDTH).mT,
    "attention": lambda layer, x: x + layer.attention(layer.norm(x)),
}
OTHER: dict[str, Callable[[Layer, Tensor], Tensor]] = {
    "positions": lambda layer, x: x + layer.places,
    "a rotary embedding": rotated,
    "a low-rank adapter": lambda layer, x: layer.down(layer.up(x)) + layer.high(layer.low(x)),
    "two heads": lambda layer, x: layer.mlp(x) + layer.high(layer.low(x)),
    "a shift of tokens": lambda layer, x: x + x.roll(1, 1),
    "an activation of itself": lambda layer, x: x + F.silu(x),
    "its mean": lambda layer, x: x + x.mean(1, keepdim=True).expand_as(x),
    "itself": lambda layer, x: x + x,
    "a difference": lambda layer, x: x - layer.mlp(x),
    "a fraction of the branch": lambda layer, x: torch.add(x, layer.mlp(x), alpha=0.5),
}


def made(body: Callable[[Layer, Tensor], Tensor]) -> tuple[Layer, Tensor]:
    torch.manual_seed(0)
    return shake(Layer(body)).double(), torch.randn(2, 4, WIDTH).double()


def met(found: conserva.Relevance) -> int:
    return sum(one.times for one in found.coverage if one.kind == "residual")


@pytest.mark.parametrize("name", [*RESIDUAL, *OTHER])
def test_sums_of_a_branch_and_its_trunk_follow_the_rule(name: str) -> None:
    model, x = made((RESIDUAL | OTHER)[name])
    plain = conserva.relevance(model, x, 1, rules="exact")
    found = conserva.relevance(model, x, 1, rules="exact+res")
    assert met(found) == (name in RESIDUAL)
    assert torch.equal(found.output, plain.output)
    assert found.ledger is not None
    near = 1e-6 if "dtype" in name else 1e-12
    assert (found.ledger.gap.abs() <= near * found.ledger.size).all()
    same = torch.allclose(found.scores(), plain.scores(), rtol=1e-9)
    assert same == (name in OTHER)
    single = conserva.relevance(model, x[:1], 1, rules="exact+res")
    torch.testing.assert_close(found.scores()[:1], single.scores())


@pytest.mark.parametrize("rules", ["gi", "ah+ln", "exact", "attnlrp"])
@pytest.mark.parametrize("build", [bert, llama], ids=lambda build: build.__name__)
def test_a_strong_gamma_leaves_nothing_to_the_part_that_disagrees(build: Callable[..., nn.Module], rules: str) -> None:
    model, inputs = build().double(), tokens(2, 5)
    layers = model.config.num_hidden_layers
    found = conserva.relevance(model, inputs, 1, rules=rule_set(rules, residual_gamma=1.0))
    assert met(found) == 2 * layers
    weak = conserva.relevance(model, inputs, 1, rules=rule_set(rules, residual_gamma=1e-9)).scores()
    torch.testing.assert_close(weak, conserva.relevance(model, inputs, 1, rules=rules).scores(), rtol=1e-5, atol=1e-7)
    assert not torch.allclose(found.scores(), weak)


def test_the_trunk_may_be_a_leaf() -> None:
    model, x = made(lambda layer, x: x)
    x.requires_grad_()
    with conserva.rules("exact+res") as context:
        y = x + model.mlp(x)
    assert context.coverage.count("residual") == 1
    grad = torch.autograd.grad(y.sum(), x)[0]
    assert torch.isfinite(grad).all()


def test_padding_gets_0_and_a_batch_equals_its_samples() -> None:
    model, inputs = bert().double(), tokens(3, 6)
    for row, length in enumerate((6, 4, 5)):
        inputs["attention_mask"][row, length:] = 0
    together = conserva.relevance(model, inputs, 1, rules="exact+res").scores()
    assert (together[inputs["attention_mask"] == 0] == 0).all()
    for row in range(3):
        single = conserva.relevance(model, {name: x[row : row + 1] for name, x in inputs.items()}, 1, rules="exact+res")
        torch.testing.assert_close(single.scores()[0], together[row])


@pytest.mark.parametrize("strength", [0.0, -1.0, float("nan"), "strong"])
def test_strengths_must_be_positive(strength: float | str) -> None:
    with pytest.raises(conserva.Error, match="residual_gamma="):
        rule_set("exact", residual_gamma=strength)


def test_the_strength_selects_the_rule() -> None:
    assert rule_set("exact", residual_gamma=0.25).residual.name == "gamma"
    assert rule_set("exact", residual="gamma").residual_gamma == 1
    assert rule_set("exact+res", residual="gradient").residual.differentiates
    assert rule_set("exact+res").closes
    with pytest.raises(conserva.Error, match="residual='half' is not a rule for residual"):
        rule_set("exact", residual="half")


def test_methods_have_the_strength_as_an_option() -> None:
    task = conserva.load()
    scores = {
        method: conserva.explain(task, "a joy.", method=method).scores
        for method in ("exact", "exact+res", "exact:residual=1", "exact+res:residual=0", "exact:residual=0.25")
    }
    assert scores["exact+res"] == scores["exact:residual=1"] != scores["exact"] == scores["exact+res:residual=0"]
    assert scores["exact:residual=0.25"] not in (scores["exact"], scores["exact+res"])
