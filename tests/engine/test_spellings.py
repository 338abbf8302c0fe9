"""Softmaxes, norms and activations in many spellings: each is read as torch's own call, or refused in words."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
from spelled_models import Plain, assert_same, explained
from tiny import shake

SETS = ("ah+ln", "exact", "attnlrp", "ah", "ln", "gi")


def in_place_softmax(s: Tensor) -> Tensor:
    e = s.sub(s.amax(-1, keepdim=True)).exp_()
    return e.div_(e.sum(-1, keepdim=True))


def by_einsum(s: Tensor) -> Tensor:
    e = s.exp()
    return torch.einsum("bhij,bhi->bhij", e, 1 / e.sum(-1))


def causal_free_cast(s: Tensor) -> Tensor:
    e = torch.exp(s.double() - s.double().max(-1, keepdim=True).values)
    return (e / e.sum(-1, keepdim=True)).to(s.dtype)


SOFTMAXES: dict[str, Callable[[Tensor], Tensor]] = {
    "exp and sum": lambda s: s.exp() / s.exp().sum(-1, keepdim=True),
    "exp once, and sum": lambda s: (lambda e: e / e.sum(-1, keepdim=True))(torch.exp(s)),
    "less the highest": lambda s: (lambda e: e / e.sum(-1, keepdim=True))((s - s.amax(-1, keepdim=True)).exp()),
    "exp of log_softmax": lambda s: s.log_softmax(-1).exp(),
    "exp of s - logsumexp": lambda s: torch.exp(s - torch.logsumexp(s, -1, keepdim=True)),
    "exp of s - log sum exp": lambda s: torch.exp(s - s.exp().sum(-1, keepdim=True).log()),
    "in place": in_place_softmax,
    "times the reciprocal": lambda s: (lambda e: e * e.sum(-1, keepdim=True).reciprocal())(s.exp()),
    "times 1 / sum": lambda s: (lambda e: (1 / e.sum(-1, keepdim=True)) * e)(s.exp()),
    "powers of two": lambda s: (lambda e: e / e.sum(-1, keepdim=True))(torch.exp2(s * math.log2(math.e))),
    "power of e": lambda s: (lambda e: e / e.sum(-1, keepdim=True))(math.e**s),
    "in double": causal_free_cast,
    "sum of a clone": lambda s: (lambda e: e / e.clone().sum(-1).unsqueeze(-1))(s.exp()),
    "through views": lambda s: (lambda e: (e / e.sum(-1, keepdim=True)).view(s.shape))(s.flatten(0, 1).exp()),
    "mean": lambda s: (lambda e: e / e.mean(-1, keepdim=True) / s.shape[-1])(s.exp()),
    "a sum with an epsilon": lambda s: (lambda e: e / (e.sum(-1, keepdim=True) + 1e-30))(s.exp()),
    "torch.div": lambda s: (lambda e: torch.div(e, torch.sum(e, -1, True)))(s.exp()),
    "aten": lambda s: torch.ops.aten._softmax(s, -1, False),
    "softmin": lambda s: F.softmin(-s, -1),
    "torch.special": lambda s: torch.special.softmax(s, -1),
    "a scaled exponential": lambda s: (lambda e: e / e.sum(-1, keepdim=True))(3 * s.exp()),
    "transposed": lambda s: (lambda e: (e / e.sum(-2, keepdim=True)).mT)(s.mT.exp()),
}
NOT_UNDER_ATTNLRP = ("exp of s - log sum exp", "times the reciprocal", "times 1 / sum")

OTHER_ATTENTION: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": lambda s: s.sigmoid(),
    "sigmoid, normalised": lambda s: s.sigmoid() / s.sigmoid().sum(-1, keepdim=True),
    "absolute values, normalised": lambda s: F.normalize(s, p=1, dim=-1),
    "relu": lambda s: s.relu() / s.shape[-1],
    "squared relu": lambda s: s.relu() ** 2,
    "none, as linear attention has it": lambda s: s,
    "sparse": lambda s: (s - s.topk(2, -1).values[..., 1:]).clamp(min=0),
    "tanh": lambda s: torch.tanh(s),
    "elu plus one": lambda s: (lambda e: e / e.sum(-1, keepdim=True))(F.elu(s) + 1),
    "softplus": lambda s: F.softplus(s) / F.softplus(s).sum(-1, keepdim=True),
}


@pytest.mark.parametrize("rules", SETS)
@pytest.mark.parametrize("name", SOFTMAXES)
def test_a_softmax_in_any_spelling_is_attention(name: str, rules: str) -> None:
    torch.manual_seed(0)
    spelled, plain = Plain(softmax=SOFTMAXES[name]), Plain()
    plain.load_state_dict(spelled.state_dict())
    if rules == "attnlrp" and name in NOT_UNDER_ATTNLRP:
        with pytest.raises(conserva.Error):
            explained(spelled, rules)
        return
    assert_same(spelled, plain, rules)


@pytest.mark.parametrize("rules", ["ah", "ah+ln", "exact", "attnlrp"])
@pytest.mark.parametrize("name", OTHER_ATTENTION)
def test_other_attention_is_refused_and_its_layer_named(name: str, rules: str) -> None:
    """One layer has a softmax, which once was enough for the whole model."""
    torch.manual_seed(0)
    with pytest.raises(conserva.Error, match=r"bilinear='half'.* Found in Plain itself, in the call"):
        explained(Plain(softmax=OTHER_ATTENTION[name]), rules)


@pytest.mark.parametrize("rules", ["exact", "attnlrp"])
@pytest.mark.parametrize("name", ["sigmoid", "none, as linear attention has it", "tanh"])
def test_other_attention_is_explained_by_a_rule_that_is_named(name: str, rules: str) -> None:
    torch.manual_seed(0)
    model, ids = shake(Plain(softmax=OTHER_ATTENTION[name]).double()), torch.tensor([[3, 7, 1, 9, 4]])
    result = conserva.relevance(model, ids, 1, rules=conserva.rules(rules, bilinear="half"))
    if rules == "exact":
        assert result.ledger.gap.abs().max() < 1e-12
    assert any(met.kind == "bilinear" and met.rule == "half" for met in result.coverage)


def late(s: Tensor, v: Tensor) -> Tensor:
    e = s.exp()
    return (e.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2) / e.sum(-1, keepdim=True)


class Elementwise(Plain):
    """Attention without a matrix product: products element by element, and sums."""

    weigh: Callable[[Tensor, Tensor], Tensor]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        layer = self.layers[0]
        q, k, v = (layer[name](x) for name in "qkv")
        x = x + F.scaled_dot_product_attention(q, k, v)
        scores = (q.unsqueeze(2) * k.unsqueeze(1)).sum(-1)
        return self.out((x + self.weigh(scores, v)).mean(1))


WEIGHED = {
    "sigmoid": lambda s, v: (s.sigmoid().unsqueeze(-1) * v.unsqueeze(-3)).sum(-2),
    "divided late": late,
    "exponentials alone": lambda s, v: (s.exp().unsqueeze(-1) * v.unsqueeze(-3)).sum(-2) / s.shape[-1],
}


@pytest.mark.parametrize("rules", ["ah+ln", "exact", "attnlrp"])
@pytest.mark.parametrize("name", WEIGHED)
def test_attention_element_by_element_that_is_not_recognised_is_refused(name: str, rules: str) -> None:
    torch.manual_seed(0)
    model = Elementwise()
    model.weigh = WEIGHED[name]
    with pytest.raises(conserva.Error, match=r"attention|softmax"):
        explained(model, rules)


EPS = 1e-5


def norm_in_place(x: Tensor) -> Tensor:
    y = x - x.mean(-1, keepdim=True)
    return y.div_((y.pow(2).mean(-1, keepdim=True) + EPS).sqrt_())


def variance(x: Tensor) -> Tensor:
    return x.var(-1, keepdim=True, correction=0) + EPS


def centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def by_statistics(x: Tensor) -> Tensor:
    spread, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(spread + EPS)


LAYER_NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "sqrt": lambda x: centred(x) / variance(x).sqrt(),
    "rsqrt": lambda x: centred(x) * variance(x).rsqrt(),
    "power": lambda x: centred(x) * variance(x) ** -0.5,
    "power by a tensor": lambda x: centred(x) * torch.pow(variance(x), torch.tensor(-0.5)),
    "float_power": lambda x: (centred(x) / torch.float_power(variance(x), 0.5)).to(x.dtype),
    "exp and log": lambda x: centred(x) * torch.exp(-0.5 * torch.log(variance(x))),
    "exp2 and log2": lambda x: centred(x) / torch.exp2(torch.log2(variance(x)) / 2),
    "reciprocal": lambda x: variance(x).sqrt().reciprocal() * centred(x),
    "one divided by": lambda x: centred(x) * (1 / variance(x).sqrt()),
    "expanded": lambda x: centred(x) * variance(x).rsqrt().expand_as(x),
    "in place": norm_in_place,
    "var_mean": by_statistics,
    "squares less the mean's": lambda x: (
        centred(x) / ((x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2 + EPS).sqrt()
    ),
    "a product with itself": lambda x: (lambda y: y / ((y * y).sum(-1, keepdim=True) / x.shape[-1] + EPS).sqrt())(
        centred(x)
    ),
    "through clones and views": lambda x: (
        lambda y: (y.clone().view(-1, x.shape[-1]) * variance(y).rsqrt().reshape(-1, 1)).view_as(x)
    )(centred(x)),
    "einsum": lambda x: centred(x) / (torch.einsum("bld,bld->bl", centred(x), centred(x)) / 8 + EPS).sqrt()[..., None],
    "group_norm": lambda x: F.group_norm(x.flatten(0, 1), 1).view_as(x),
    "instance_norm": lambda x: F.instance_norm(x),
    "instance_norm of flattened rows": lambda x: F.instance_norm(x.view(1, -1, x.shape[-1])).view_as(x),
    "norm": lambda x: centred(x) / (centred(x).norm(dim=-1, keepdim=True) ** 2 / x.shape[-1] + EPS) ** 0.5,
}


@pytest.mark.parametrize("rules", SETS)
@pytest.mark.parametrize("name", LAYER_NORMS)
def test_a_layer_norm_in_any_spelling_is_a_norm(name: str, rules: str) -> None:
    torch.manual_seed(0)
    spelled, plain = Plain(norm=LAYER_NORMS[name]), Plain()
    plain.load_state_dict(spelled.state_dict())
    if name == "einsum" and rules == "ah":
        with pytest.raises(conserva.Error, match="bilinear"):
            explained(spelled, rules)  # not frozen, a product of a tensor with itself may be a part of attention
        return
    if name == "in place" and rules in ("ah", "gi"):
        with pytest.raises(conserva.Error, match="changes a tensor in place that its own gradient needs"):
            explained(spelled, rules)  # as torch does itself
        return
    assert_same(spelled, plain, rules)


def rms(x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


LENGTHS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "rms_norm": (lambda x: F.rms_norm(x, x.shape[-1:], eps=EPS), rms),
    "rms as a product": (lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS), rms),
    "normalize": (lambda x: F.normalize(x, dim=-1), lambda x: x / x.detach().norm(dim=-1, keepdim=True)),
    "vector_norm": (lambda x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True), lambda x: F.normalize(x, dim=-1)),
    "matrix_norm": (
        lambda x: x / torch.linalg.matrix_norm(x.unsqueeze(-2), keepdim=True).squeeze(-2),
        lambda x: F.normalize(x, dim=-1),
    ),
    "cdist": (lambda x: x / torch.cdist(x.unsqueeze(-2), torch.zeros(1, 8).to(x)).squeeze(-1), None),
    "pairwise_distance": (lambda x: x / F.pairwise_distance(x, torch.zeros_like(x), keepdim=True, eps=0.0), None),
    "renorm": (lambda x: torch.renorm(x.flatten(0, 1), 2, 0, 1e-3).view_as(x) * 1e3, None),
    "norm of a difference": (lambda x: x / (x - 0).norm(dim=-1, keepdim=True), None),
    "p of 1": (lambda x: x / x.abs().sum(-1, keepdim=True), lambda x: F.normalize(x, p=1, dim=-1)),
    "largest": (lambda x: x / x.abs().amax(-1, keepdim=True), lambda x: F.normalize(x, p=math.inf, dim=-1)),
}


@pytest.mark.parametrize("rules", ["ln", "ah+ln", "exact"])
@pytest.mark.parametrize("name", LENGTHS)
def test_a_division_by_a_length_is_a_norm_or_is_refused(name: str, rules: str) -> None:
    """The scale is a constant: what is expected is the same model with its length detached."""
    torch.manual_seed(0)
    spelling, other = LENGTHS[name]
    spelled, plain = Plain(norm=spelling), Plain(norm=other or (lambda x: F.normalize(x, dim=-1)))
    plain.load_state_dict(spelled.state_dict())
    expected, found = explained(plain, rules), explained(spelled, rules)
    torch.testing.assert_close(found, expected, rtol=1e-3 if name == "renorm" else 1e-9, atol=1e-9)


@pytest.mark.parametrize("rules", ["ah+ln", "exact"])
def test_cosine_similarity_is_a_product_of_normalised_tensors(rules: str) -> None:
    class Head(Plain):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            x = x + F.scaled_dot_product_attention(x, x, x)
            return self.alike(x.mean(1), self.layers[0]["q"](x).amax(1)).unsqueeze(-1)

    spellings = (
        lambda a, b: F.cosine_similarity(a, b),
        lambda a, b: nn.CosineSimilarity()(a, b),
        lambda a, b: torch.cosine_similarity(x1=a, x2=b, dim=-1),
        lambda a, b: (F.normalize(a, dim=-1) * F.normalize(b, dim=-1)).sum(-1),
    )
    torch.manual_seed(0)
    model, found = Head(), []
    for spelling in spellings:
        model.alike = spelling
        ids = torch.tensor([[3, 7, 1, 9, 4]])
        found.append(conserva.relevance(model.double().eval(), ids, 0, rules=rules).scores())
    for other in found[:-1]:
        torch.testing.assert_close(other, found[-1], rtol=1e-9, atol=1e-12)


SMALL_FACTORS = {
    "a mean": lambda x: x * x.mean(-1, keepdim=True),
    "a mean, squared": lambda x: x * x.mean(-1, keepdim=True) ** 2,
    "a mean, activated": lambda x: x * torch.tanh(x.mean(-1, keepdim=True)),
    "a sum over the tokens": lambda x: x * x.sum(1, keepdim=True),
    "the largest": lambda x: x * x.amax(1, keepdim=True),
}


@pytest.mark.parametrize("name", SMALL_FACTORS)
def test_a_small_factor_that_does_not_normalise_is_not_frozen(name: str) -> None:
    """Each factor gets half, as the gradient of each alone tells."""

    class Gated(Plain):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            x = x + F.scaled_dot_product_attention(x, x, x)
            return self.out(SMALL_FACTORS[name](self.layers[0]["q"](x)).mean(1))

    torch.manual_seed(0)
    model, ids = shake(Gated().double()), torch.tensor([[3, 7, 1, 9, 4]])
    result = conserva.relevance(model, ids, 1, rules="exact")
    assert result.ledger.gap.abs().max() < 1e-12
    assert not any(met.kind == "norm" for met in result.coverage)


def test_laser_attention_is_refused() -> None:
    """log(softmax @ exp(values)): its logarithm has no value at 0, and scores would explode."""

    class Laser(Plain):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            q, k, v = (self.layers[0][name](x) for name in "qkv")
            return self.out((x + torch.log((q @ k.mT).softmax(-1) @ v.exp())).mean(1))

    torch.manual_seed(0)
    with pytest.raises(conserva.Error, match="log is not finite at 0"):
        explained(Laser(), "exact")


def test_a_gated_product_of_two_layers_stays_one() -> None:
    """What looks alike: the factors are parts of one layer's output, or sums that share a part."""

    class Gated(Plain):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            x = x + F.scaled_dot_product_attention(x, x, x)
            a, b = self.layers[0]["up"](x).chunk(2, -1)
            return self.out(
                torch.cat(
                    [F.silu(a) * b, a[..., :2].tanh() * a[..., 2:].tanh().repeat(1, 1, 2)[..., :2], b[..., :2]], -1
                ).mean(1)
            )

    torch.manual_seed(0)
    model, ids = shake(Gated().double()), torch.tensor([[3, 7, 1, 9, 4]])
    assert conserva.relevance(model, ids, 1, rules="exact").ledger.gap.abs().max() < 1e-12
