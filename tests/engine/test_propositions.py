"""The theory of Ali et al. 2022, as numbers."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import conserva
from tiny import HandWritten, bert, llama, shake, tokens


def gradient_times_input(output: Tensor, *inputs: Tensor) -> list[Tensor]:
    return [x * g for x, g in zip(inputs, torch.autograd.grad(output, inputs), strict=True)]


def test_proposition_1_gradient_times_input_breaks_conservation_in_attention_heads() -> None:
    """sum R(x) + sum R(x') = sum R(y) + 2 sum_j Cov_j(q_:j, x) . df/dy_j, queries x' and keys bilinear."""
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    queries = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    weight, upper = torch.randn(4, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    with conserva.rules("gi"):
        q = queries @ weight @ x.T / 2
        p = torch.softmax(q, -1)
        y = p @ x
    of_x, of_queries = gradient_times_input((y * upper).sum(), x, queries)
    covariance = torch.zeros((), dtype=torch.float64)
    for j in range(5):
        mean_q = sum(p[j, i] * q[j, i] for i in range(6))
        mean_x = sum(p[j, i] * x[i] for i in range(6))
        for i in range(6):
            covariance = covariance + p[j, i] * (q[j, i] - mean_q) * ((x[i] - mean_x) * upper[j]).sum()
    broken = of_x.sum() + of_queries.sum() - (y * upper).sum()
    torch.testing.assert_close(broken, 2 * covariance, rtol=1e-10, atol=1e-10)
    assert broken.abs() > 1e-2


def test_proposition_1_does_not_touch_the_ah_rule() -> None:
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    weight, upper = torch.randn(4, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    with conserva.rules("ah"):
        y = torch.softmax(x @ weight @ x.T / 2, -1) @ x
    (relevance,) = gradient_times_input((y * upper).sum(), x)
    torch.testing.assert_close(relevance.sum(), (y * upper).sum(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("eps", [1e-12, 1e-3, 0.5])
def test_proposition_2_gradient_times_input_collapses_in_layer_norm(eps: float) -> None:
    """sum R(x) = (1 - Var / (eps + Var)) sum R(y)."""
    x = torch.randn(8, dtype=torch.float64, requires_grad=True)
    upper = torch.randn(8, dtype=torch.float64)
    with conserva.rules("gi"):
        y = F.layer_norm(x, (8,), eps=eps)
    (relevance,) = gradient_times_input((y * upper).sum(), x)
    variance = x.var(correction=0)
    expected = (1 - variance / (eps + variance)) * (y * upper).sum()
    torch.testing.assert_close(relevance.sum(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("eps", [1e-12, 1e-3, 0.5])
def test_proposition_2_does_not_touch_the_ln_rule(eps: float) -> None:
    x = torch.randn(8, dtype=torch.float64, requires_grad=True)
    upper = torch.randn(8, dtype=torch.float64)
    with conserva.rules("ln"):
        y = F.layer_norm(x, (8,), eps=eps)
    (relevance,) = gradient_times_input((y * upper).sum(), x)
    torch.testing.assert_close(relevance.sum(), (y * upper).sum(), rtol=1e-12, atol=1e-12)


def test_gradient_times_input_below_a_layer_norm_sums_to_nothing() -> None:
    """In a post-norm network the embedding norm takes all: words and positions cancel (eps is 1e-12 in BERT)."""
    result = conserva.relevance(bert().double(), tokens(), 1, rules="gi")
    assert result.ledger is not None
    together = result.ledger.inputs + result.ledger.positions
    assert together.abs().max() < 1e-8 * result.output.abs().max()
    assert result.ledger.inputs.abs().max() > 1e-3


MODELS = {"bert": bert, "llama": llama}


def frozen_model(model: HandWritten, at: Tensor):
    """Return the hand-written model with the coefficients it has at one point, as a function of x and a factor.

    The factor multiplies everything that the model adds: positions, biases, the norms' shifts.
    """

    def norm(x: Tensor, scale: Tensor, factor: float) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) * scale * model.gain + factor * model.shift

    def layer(linear: torch.nn.Linear, x: Tensor, factor: float) -> Tensor:
        return x @ linear.weight.T + factor * linear.bias

    def run(x: Tensor, factor: float, kept: dict[str, Tensor], keep: bool) -> Tensor:
        def coefficient(name: str, compute) -> Tensor:
            if keep:
                kept[name] = compute().detach()
            return kept[name]

        def scale_of(x: Tensor) -> Tensor:
            return 1 / torch.sqrt(x.var(-1, correction=0, keepdim=True) + 1e-5)

        x = x + factor * model.places[:, : x.shape[1]]
        normed = norm(x, coefficient("first", lambda: scale_of(x)), factor)
        q, k, v = (t.unflatten(-1, (model.heads, -1)) for t in layer(model.qkv, normed, factor).chunk(3, -1))
        p = coefficient("p", lambda: (torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5).softmax(-1))
        x = x + layer(model.mix, torch.einsum("bhij,bjhd->bihd", p, v).flatten(2), factor)
        u = layer(model.up, norm(x, coefficient("second", lambda: scale_of(x)), factor), factor)
        x = x + layer(model.down, u * coefficient("gelu", lambda: F.gelu(u, approximate="tanh") / u), factor)
        last = norm(x, coefficient("third", lambda: scale_of(x)), factor)
        return layer(model.out, last.mean(1), factor)

    kept: dict[str, Tensor] = {}
    run(at, 1.0, kept, keep=True)
    return lambda x, factor=1.0: run(x, factor, kept, keep=False)


@pytest.mark.parametrize("factor", [0.5, 2.0, -3.0])
def test_exact_model_is_homogeneous_of_degree_one(factor: float) -> None:
    """The frozen model, written out here, scales with its inputs and constants, and its split is conserva's."""
    model, ids = shake(HandWritten().double()), torch.randint(0, 50, (2, 6))
    x = model.words(ids).detach().requires_grad_()
    frozen = frozen_model(model, x)
    torch.testing.assert_close(frozen(x), model(ids), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(frozen(factor * x, factor), factor * frozen(x), rtol=1e-12, atol=1e-12)
    (grad,) = torch.autograd.grad(frozen(x)[:, 1].sum(), x)
    ours = conserva.relevance(model, ids, 1, rules="exact")
    torch.testing.assert_close(ours.values["ids"], (x * grad).detach(), rtol=1e-9, atol=1e-12)
    constants = frozen(torch.zeros_like(x))[:, 1].detach()
    assert ours.ledger is not None
    torch.testing.assert_close(ours.ledger.positions + ours.ledger.biases, constants, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["hand", *MODELS])
def test_exact_books_close(name: str) -> None:
    if name == "hand":
        model, inputs = shake(HandWritten().double()), torch.randint(0, 50, (3, 6))
    else:
        model, inputs = MODELS[name]().double(), tokens()
    result = conserva.relevance(model, inputs, 1, rules="exact")
    assert result.ledger is not None
    assert result.ledger.gap.abs().max() < (1e-6 if name == "llama" else 1e-12) * result.output.abs().max()


def test_ah_ln_leaves_a_gap_that_exact_closes() -> None:
    """The paper's rule set is not exact: activations are differentiated. The ledger says so."""
    model = bert().double()
    gaps = {r: conserva.relevance(model, tokens(), 1, rules=r).ledger.gap.abs().max() for r in ("ah+ln", "exact")}
    assert gaps["ah+ln"] > 1e-3 > 1e-12 > gaps["exact"]


def test_tanh_pooler_leaks_more_than_the_biases() -> None:
    """On an attention-only network as the paper's, tanh by its ratio closes what the biases do not explain."""
    torch.manual_seed(0)
    model = bert(hidden_act="relu").double()
    plain = conserva.relevance(model, tokens(), 1, rules="ah+ln").ledger
    assert plain is not None
    with_ratio = conserva.relevance(model, tokens(), 1, rules=conserva.rules("ah+ln", activation="ratio")).ledger
    assert with_ratio is not None
    assert with_ratio.gap.abs().max() < 1e-10 < plain.gap.abs().max()
