"""Every rule against a slow replica: the papers' sums and quotients, in float64, by explicit loops."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import conserva
from replica_models import EXACT, normal, propagated
from tiny import attention_head

HOW = ("matmul", "einsum", "fused")


# AH-rule, Ali et al. 2022, eq. (6): R(x_i) = sum_j x_i p_ij / (sum_i' x_i' p_i'j) R(y_j)


def ah_rule(x: Tensor, p: Tensor, relevance: Tensor) -> Tensor:
    tokens, width = x.shape
    out = torch.zeros_like(x)
    for j in range(tokens):
        for d in range(width):
            total = sum(x[i, d] * p[j, i] for i in range(tokens))
            for i in range(tokens):
                out[i, d] += x[i, d] * p[j, i] / total * relevance[j, d]
    return out


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("rules", ["ah", "ah+ln", "exact"])
def test_ah_rule_equals_the_printed_formula(how: str, rules: str) -> None:
    x, w_q, w_k, upper = normal(5, 4), normal(4, 4), normal(4, 4), normal(5, 4)
    w_v = torch.eye(4, dtype=torch.float64)
    p = torch.softmax((x @ w_q) @ (x @ w_k).T / 2, -1)
    (ours,) = propagated(conserva.rules(rules), lambda x: attention_head(x, w_q, w_k, w_v, how), x, upper=upper)
    torch.testing.assert_close(ours, ah_rule(x, p, (p @ x) * upper), **EXACT)


# LN-rule, Ali et al. 2022, eq. (9): R(x_i) = sum_j x_i (d_ij - 1/N) / (sum_i' x_i' (d_i'j - 1/N)) R(y_j)


def ln_rule(x: Tensor, relevance: Tensor) -> Tensor:
    n = len(x)
    out = torch.zeros_like(x)
    for j in range(n):
        weights = [(1.0 if i == j else 0.0) - 1.0 / n for i in range(n)]
        total = sum(x[i] * weights[i] for i in range(n))
        for i in range(n):
            out[i] += x[i] * weights[i] / total * relevance[j]
    return out


def spelled_out(x: Tensor, root) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * root((x - mean).pow(2).mean(-1, keepdim=True) + 1e-5)


NORMS = {
    "layer_norm": lambda x: F.layer_norm(x, (6,), eps=1e-5),
    "rsqrt": lambda x: spelled_out(x, torch.rsqrt),
    "sqrt": lambda x: spelled_out(x, lambda v: 1 / v.sqrt()),
    "pow": lambda x: spelled_out(x, lambda v: v**-0.5),
    "std": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-12),
    "group_norm": lambda x: F.group_norm(x.reshape(1, 6), 1, eps=1e-5).reshape(6),
}


@pytest.mark.parametrize("rules", ["ln", "ah+ln", "exact", "attnlrp"])
@pytest.mark.parametrize("norm", NORMS)
def test_ln_rule_equals_the_printed_formula(norm: str, rules: str) -> None:
    x, upper = normal(6), normal(6)
    (ours,) = propagated(conserva.rules(rules), NORMS[norm], x, upper=upper)
    torch.testing.assert_close(ours, ln_rule(x, NORMS[norm](x) * upper), **EXACT)


def test_ln_rule_with_a_detached_mean_would_be_noticed() -> None:
    x, upper = normal(6), normal(6)

    def mean_detached(x: Tensor) -> Tensor:
        return (x - x.mean().detach()) / torch.sqrt(x.var(correction=0) + 1e-5)

    (wrong,) = propagated(conserva.rules("ln"), mean_detached, x, upper=upper)
    assert (wrong - ln_rule(x, mean_detached(x) * upper)).abs().max() > 1e-2


def test_ln_rule_keeps_weight_and_bias_apart() -> None:
    x, weight, bias, upper = normal(6), normal(6), normal(6), normal(6)
    (ours,) = propagated(conserva.rules("ln"), lambda x: F.layer_norm(x, (6,), weight, bias), x, upper=upper)
    arriving = F.layer_norm(x, (6,)) * weight * upper  # the share of the bias stays with it
    torch.testing.assert_close(ours, ln_rule(x, arriving), **EXACT)


RMS_NORMS = {
    "rms_norm": lambda x: F.rms_norm(x, (6,), eps=1e-6),
    "rsqrt": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "length": lambda x: x / (x.norm(2, dim=-1, keepdim=True) * 6**-0.5),
    "square": lambda x: x / torch.sqrt(torch.square(x).mean(-1, keepdim=True) + 1e-6),
    "normalize": lambda x: F.normalize(x, dim=-1),
}


@pytest.mark.parametrize("norm", RMS_NORMS)
@pytest.mark.parametrize("rules", ["ln", "ah+ln", "exact"])
def test_rms_norm_in_every_spelling_passes_relevance_unchanged(norm: str, rules: str) -> None:
    x, upper = normal(6), normal(6)
    (ours,) = propagated(conserva.rules(rules), RMS_NORMS[norm], x, upper=upper)
    torch.testing.assert_close(ours, RMS_NORMS[norm](x) * upper, **EXACT)  # R(x_i) = R(y_i): the scale is a factor


# Activations: R(x) = R(y), since y = x * constant


def gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "mish": F.mish,
    "gelu_new": gelu_new,
    "gelu erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "gelu fast": lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu by hand": lambda x: x / (1 + torch.exp(-x)),
    "relu squared": lambda x: torch.square(F.relu(x)),
    "mish by hand": lambda x: x * torch.tanh(F.softplus(x)),
    "soft cap": lambda x: 30 * torch.tanh(x / 30),
    "in place": lambda x: F.relu(x.clone(), inplace=True),
    "method in place": lambda x: x.clone().tanh_(),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("rules", ["exact", "attnlrp"])
def test_ratio_rule_passes_relevance_unchanged_in_every_spelling(name: str, rules: str) -> None:
    x, upper = normal(50), normal(50)
    (ours,) = propagated(conserva.rules(rules), ACTIVATIONS[name], x, upper=upper)
    torch.testing.assert_close(ours, ACTIVATIONS[name](x) * upper, **EXACT)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_ratio_rule_takes_the_limit_at_zero(name: str) -> None:
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    with conserva.rules("exact"):
        y = ACTIVATIONS[name](x)
    (ours,) = torch.autograd.grad(y.sum(), x)
    (slope,) = torch.autograd.grad(ACTIVATIONS[name](x).sum(), x)
    torch.testing.assert_close(ours, slope, **EXACT)


@pytest.mark.parametrize("name", ["gelu", "silu", "tanh", "gelu_new"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_ratio_rule_is_finite_and_bounded_near_zero(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 1e-7, -1e-7, 6e-8, 1e-4, -1e-4], dtype=dtype, requires_grad=True)
    with conserva.rules("exact"):
        y = ACTIVATIONS[name](x)
    (ours,) = torch.autograd.grad(y.sum(), x)
    assert torch.isfinite(ours).all()
    assert ours.abs().max() <= 1.2


@pytest.mark.parametrize("function", [torch.sigmoid, F.softplus, torch.exp, lambda x: 1 / (1 + torch.exp(-x))])
def test_ratio_rule_shares_what_is_beyond_the_value_at_zero(function) -> None:
    x, upper = normal(50), normal(50)
    (ours,) = propagated(conserva.rules("exact"), function, x, upper=upper)
    at_zero = function(torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(ours, (function(x) - at_zero) * upper, rtol=1e-7, atol=1e-9)


# Products: half to each factor, or all to the one that is no gate


@pytest.mark.parametrize("call", [torch.mul, lambda a, b: a * b, lambda a, b: torch.einsum("i,i->i", a, b)])
def test_half_rule_gives_each_factor_half(call) -> None:
    a, b, upper = normal(8), normal(8), normal(8)
    for_a, for_b = propagated(conserva.rules("exact"), call, a, b, upper=upper)
    torch.testing.assert_close(for_a, a * b * upper / 2, **EXACT)
    torch.testing.assert_close(for_b, a * b * upper / 2, **EXACT)


def test_half_rule_in_place() -> None:
    def call(a: Tensor, b: Tensor) -> Tensor:
        c = a.clone()
        c *= b
        return c

    a, b, upper = normal(8), normal(8), normal(8)
    for relevance in propagated(conserva.rules("exact"), call, a, b, upper=upper):
        torch.testing.assert_close(relevance, a * b * upper / 2, **EXACT)


@pytest.mark.parametrize("activation", ["ratio", "gradient"])
def test_freeze_gate_rule_gives_all_to_the_other_factor(activation: str) -> None:
    gate, value, upper = normal(8), normal(8), normal(8)
    rules = conserva.rules("exact", product="freeze-gate", activation=activation)
    for_gate, for_value = propagated(rules, lambda g, v: F.silu(g) * v, gate, value, upper=upper)
    torch.testing.assert_close(for_value, F.silu(gate) * value * upper, **EXACT)
    assert for_gate.abs().max() == 0


def test_glu_is_read_as_a_product_with_a_gate() -> None:
    x, upper = normal(8), normal(4)
    rules = conserva.rules("exact", product="freeze-gate")
    (ours,) = propagated(rules, lambda x: F.glu(x), x, upper=upper)
    torch.testing.assert_close(ours[:4], F.glu(x) * upper, **EXACT)
    assert ours[4:].abs().max() == 0


def test_quotient_freezes_the_divisor() -> None:
    a, b, upper = normal(8), normal(8).abs() + 1, normal(8)
    for_a, for_b = propagated(conserva.rules("exact"), lambda a, b: a / b, a, b, upper=upper)
    torch.testing.assert_close(for_a, a / b * upper, **EXACT)
    assert for_b.abs().max() == 0


# AttnLRP, Achtibat et al. 2024: uniform at each product, the softmax by its gradient


def attn_lrp_head(q: Tensor, k: Tensor, v: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    tokens, width = q.shape
    s = q @ k.T / math.sqrt(width)
    p = torch.softmax(s, -1)
    y = p @ v
    r_p, r_v = torch.zeros_like(p), torch.zeros_like(v)
    for i in range(tokens):
        for j in range(tokens):
            for d in range(width):
                share = p[i, j] * v[j, d] / y[i, d] * relevance[i, d] / 2
                r_p[i, j] += share
                r_v[j, d] += share
    r_s = torch.zeros_like(s)
    for i in range(tokens):
        for j in range(tokens):
            r_s[i, j] = s[i, j] * (r_p[i, j] - p[i, j] * sum(r_p[i, m] for m in range(tokens)))
    r_q, r_k = torch.zeros_like(q), torch.zeros_like(k)
    for i in range(tokens):
        for j in range(tokens):
            for d in range(width):
                share = q[i, d] * k[j, d] / math.sqrt(width) / s[i, j] * r_s[i, j] / 2
                r_q[i, d] += share
                r_k[j, d] += share
    return r_q, r_k, r_v


@pytest.mark.parametrize("how", ["matmul", "fused"])
def test_uniform_rule_equals_the_attnlrp_formulas(how: str) -> None:
    q, k, v, upper = normal(4, 3), normal(4, 3), normal(4, 3), normal(4, 3)

    def head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if how == "matmul":
            return torch.softmax(q @ k.T / math.sqrt(3), -1) @ v
        return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]

    ours = propagated(conserva.rules("attnlrp"), head, q, k, v, upper=upper)
    y = torch.softmax(q @ k.T / math.sqrt(3), -1) @ v
    for mine, theirs in zip(ours, attn_lrp_head(q, k, v, y * upper), strict=True):
        torch.testing.assert_close(mine, theirs, **EXACT)


# Linear layers: LRP-0, LRP-epsilon, LRP-gamma


def lrp_linear(x: Tensor, w: Tensor, b: Tensor, relevance: Tensor, epsilon: float, gamma: float) -> Tensor:
    w, b = w + gamma * w.clamp(min=0), b + gamma * b.clamp(min=0)
    out = torch.zeros_like(x)
    for j in range(len(w)):
        z = sum(x[i] * w[j, i] for i in range(len(x))) + b[j]
        z = z + (epsilon if z >= 0 else -epsilon)
        for i in range(len(x)):
            out[i] += x[i] * w[j, i] / z * relevance[j]
    return out


LINEAR = {
    "linear": lambda x, w, b: F.linear(x, w, b),
    "addmm": lambda x, w, b: torch.addmm(b, x[None], w.T)[0],
    "conv1d": lambda x, w, b: F.conv1d(x[None, :, None], w[:, :, None], b)[0, :, 0],
}


@pytest.mark.parametrize("call", LINEAR)
@pytest.mark.parametrize(
    ("changes", "epsilon", "gamma"),
    [({}, 0.0, 0.0), ({"epsilon": 0.25}, 0.25, 0.0), ({"gamma": 0.5, "epsilon": 1e-12, "linear": "gamma"}, 1e-12, 0.5)],
)
def test_linear_rules_equal_lrp(call: str, changes: dict, epsilon: float, gamma: float) -> None:
    x, w, b, upper = normal(5), normal(4, 5), normal(4), normal(4)
    (ours,) = propagated(conserva.rules("gi", **changes), lambda x: LINEAR[call](x, w, b), x, upper=upper)
    theirs = lrp_linear(x, w, b, LINEAR[call](x, w, b) * upper, epsilon, gamma)
    torch.testing.assert_close(ours, theirs, **EXACT)


def test_gamma_rule_keeps_the_output_and_survives_zeros() -> None:
    x, w = torch.zeros(5, dtype=torch.float64, requires_grad=True), normal(4, 5)
    with conserva.rules("gi", gamma=0.1):
        y = F.linear(x, w)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(y, F.linear(x, w))
    assert torch.isfinite(grad).all()
