"""attention="refuse": models that have no attention are explained, and models that have one are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import FNetConfig, FNetForSequenceClassification

import conserva
from conserva.engine.rules import RULE_SETS
from tiny import shake

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def mlp() -> nn.Sequential:
    parts = nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
    return shake(nn.Sequential(*parts)).double()


def convolutions() -> nn.Sequential:
    parts = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 4, 3), nn.SiLU(), nn.Flatten())
    return shake(nn.Sequential(*parts, nn.Linear(16, 3))).double()


class Gated(nn.Module):
    """A gated layer, which has a product of two tensors that depend on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (5, 6)),
    "convolutions": (convolutions, (5, 1, 10, 10)),
    "gated": (lambda: shake(Gated()).double(), (5, 6)),
}


def without(rules: str, **changes: Any) -> Any:
    return conserva.rules(rules, attention="refuse", **changes)


def example(name: str) -> tuple[nn.Module, Tensor]:
    make, shape = MODELS[name]
    return make(), torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODELS)
def test_the_plain_gradient_is_that_of_torch(name: str) -> None:
    model, x = example(name)
    leaf = x.clone().requires_grad_()
    plain = x * torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)[0]
    found = conserva.relevance(model, x, 1, rules=without("gi"))
    torch.testing.assert_close(next(iter(found.values.values())), plain, **CLOSE)


@pytest.mark.parametrize("name", MODELS)
def test_the_ledger_closes(name: str) -> None:
    model, x = example(name)
    found = conserva.relevance(model, x, [0, 1, 2, 1, 0], rules=without("exact"))
    assert found.rules.closes
    torch.testing.assert_close(found.ledger.gap, torch.zeros(5, dtype=torch.float64), **CLOSE)
    inputs = next(iter(found.values.values())).flatten(1).sum(1)
    rest = found.ledger.positions + found.ledger.biases
    torch.testing.assert_close(inputs + rest, model(x)[range(5), [0, 1, 2, 1, 0]].detach(), **CLOSE)


def test_a_transformer_that_mixes_tokens_by_fourier_transforms() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "max_position_embeddings": 32}
    model = shake(FNetForSequenceClassification(FNetConfig(vocab_size=50, **sizes))).double()
    ids = torch.tensor([[4, 8, 9, 5], [4, 9, 9, 5]])
    found = conserva.relevance(model, ids, [0, 1], rules=without("exact"))
    rest = found.ledger.positions + found.ledger.biases
    torch.testing.assert_close(found.scores().sum(1) + rest, model(ids).logits[[0, 1], [0, 1]].detach(), **CLOSE)


def test_activations_and_norms_follow_their_rules() -> None:
    model, x = example("mlp")
    first, _, norm, second, _, last = model
    a = first(x)
    ratio = F.gelu(a) / a
    b = F.gelu(a)
    scale = norm.weight / (b.var(1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    c = second(norm(b))
    weights = last.weight[1] * (c.tanh() / c) @ second.weight * scale  # samples x numbers, at the output of the norm
    weights = (weights - weights.mean(1, keepdim=True)) * ratio
    found = conserva.relevance(model, x, 1, rules=without("exact"))
    torch.testing.assert_close(next(iter(found.values.values())), (x * (weights @ first.weight)).detach(), **CLOSE)


@pytest.mark.parametrize("rules", RULE_SETS)
def test_every_rule_set_explains_a_log_probability(rules: str) -> None:
    model, x = example("mlp")
    found = conserva.relevance(model, x, lambda output: output.log_softmax(-1)[:, 1], rules=without(rules))
    assert next(iter(found.values.values())).isfinite().all()


def test_without_the_rule_such_models_are_refused() -> None:
    model, x = example("mlp")
    for rules, name in (("gi", "gi"), ("ah+ln", r"ah\+ln"), (conserva.rules("exact", gamma=0.1), "exact")):
        with pytest.raises(conserva.Error, match=rf"has no attention.*rules\('{name}', attention='refuse'\)"):
            conserva.relevance(model, x, 1, rules=rules)


class Attends(nn.Module):
    """A kind of attention, and a path beside it that has a gradient."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.heads = nn.MultiheadAttention(6, 2, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((x + KINDS[self.kind](self, x)).mean(1))


def written(scores: Tensor) -> Tensor:
    weights = scores.exp()
    return weights / weights.sum(-1, keepdim=True)


def outside(x: Tensor) -> Tensor:
    with torch.no_grad():
        return (x @ x.mT).softmax(-1) @ x


KINDS: dict[str, Callable[[Attends, Tensor], Tensor]] = {
    "softmax": lambda model, x: (x @ x.mT).softmax(-1) @ x,
    "written out": lambda model, x: written(x @ x.mT) @ x,
    "logarithms": lambda model, x: (x @ x.mT - (x @ x.mT).logsumexp(-1, keepdim=True)).exp() @ x,
    "one call": lambda model, x: F.scaled_dot_product_attention(x, x, x),
    "module": lambda model, x: model.heads(x, x, x)[0],
    "product": lambda model, x: x @ x.mT @ x,
    "no gradient": lambda model, x: outside(x),
    "router": lambda model, x: x.softmax(-1) * x,
}


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_refused(kind: str, rules: str) -> None:
    model = shake(Attends(kind)).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    expected = {"product": "not part of an attention", "no gradient": "without a gradient"}
    with pytest.raises(conserva.Error, match=expected.get(kind, "for models without attention, but '.*' is called")):
        conserva.relevance(model, x, 1, rules=without(rules))


def test_softmaxes_of_constants_are_no_attention() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights, self.out = nn.Parameter(torch.randn(6)), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x * self.weights.softmax(-1))

    model, x = Weighted().double().eval(), torch.randn(2, 6, dtype=torch.float64)
    found = conserva.relevance(model, x, 1, rules=without("exact"))
    torch.testing.assert_close(found.ledger.inputs + found.ledger.biases, model(x)[:, 1].detach(), **CLOSE)


def test_the_message_names_the_module_and_says_what_to_do() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Softmax(-1)).double().eval()
    said = r"'exact \(attention=refuse\)'.* but 'softmax' is called in Softmax\. If the output is a probability"
    with pytest.raises(conserva.Error, match=said):
        conserva.relevance(model, torch.randn(2, 6, dtype=torch.float64), 1, rules=without("exact"))


def test_the_context_refuses_too() -> None:
    with without("exact"), pytest.raises(conserva.Error, match=r"without attention, but 'softmax' is called\. If"):
        torch.ones(3, requires_grad=True).softmax(-1)
