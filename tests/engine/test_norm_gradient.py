"""The GPU kernel for the gradient of a LayerNorm with a constant scale, against float64; or in an interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="the kernel is written in Triton")

import conserva
import tiny
from conserva.engine.kernels import norm_gradient as norm_gradient_module
from conserva.engine.kernels.norm_gradient import WIDEST, fits, norm_gradient
from conserva.engine.operations import norms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).mul(3).to(DEVICE, dtype)


@pytest.mark.parametrize("weighed", [True, False])
@pytest.mark.parametrize("width", [1, 2, 37, 256, 768, 1025])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_equals_the_gradient_in_float64(dtype: torch.dtype, width: int, weighed: bool) -> None:
    grad, scale = drawn(2, 5, width, dtype=dtype), drawn(2, 5, 1).abs()
    weight = drawn(width, dtype=dtype) if weighed else None
    x = torch.zeros(grad.shape, dtype=torch.float64, device=DEVICE, requires_grad=True)
    value = (x - x.mean(-1, keepdim=True)) * scale.double()
    (expected,) = torch.autograd.grad(value if weight is None else value * weight.double(), x, grad.double())
    assert fits(grad, scale, weight)
    found = norm_gradient(grad, scale, weight)
    assert found.dtype == dtype
    bound = TOLERANCES[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound * float(expected.abs().max() + 1))


def test_a_weight_of_another_type() -> None:
    grad, scale, weight = drawn(4, 8, dtype=torch.bfloat16), drawn(4, 1).abs(), drawn(8)
    assert fits(grad, scale, weight)
    found, same = norm_gradient(grad, scale, weight), norm_gradient(grad.float(), scale, weight)
    torch.testing.assert_close(found, same.bfloat16())


def test_every_element_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, float("nan")))
    assert torch.isfinite(norm_gradient(drawn(3, 300), drawn(3, 1), drawn(300))).all()


def test_what_it_does_not_read() -> None:
    grad, scale, weight = drawn(4, 8), drawn(4, 1), drawn(8)
    assert fits(grad, scale, None)
    assert not fits(grad.t().contiguous().t(), scale, weight)
    assert not fits(grad, scale, drawn(16)[::2])
    assert not fits(grad.double(), scale.double(), weight.double())
    assert not fits(drawn(1, WIDEST + 1), drawn(1, 1), None)
    assert not fits(drawn(0, 8), drawn(0, 1), None)


@pytest.mark.parametrize("shape", [(8,), (4, 8)])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_rule_is_the_same_with_it_and_without(
    shape: tuple[int, ...], transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, bias, grad = drawn(*shape), drawn(*shape), drawn(2, 4, 8)
    grad = grad.transpose(0, 1).contiguous().transpose(0, 1) if transposed else grad
    found = []
    for has_kernel in (True, False):
        monkeypatch.setattr(norms, "kernels_available", lambda device, there=has_kernel: there)
        x = torch.linspace(-1, 2, 64, device=DEVICE).view(2, 4, 8).sin().requires_grad_()
        value = norms.FrozenLayerNorm.apply(x, list(shape), weight, bias, 1e-5)
        torch.testing.assert_close(value, F.layer_norm(x, shape, weight, bias, 1e-5))
        found += torch.autograd.grad(value, x, grad)
    torch.testing.assert_close(*found)


def test_many_gradients_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "kernels_available", lambda device: True)
    x, grads = drawn(2, 3, 8).requires_grad_(), drawn(5, 2, 3, 8)
    value = norms.FrozenLayerNorm.apply(x, [8], drawn(8), None, 1e-5)
    expected = torch.stack([torch.autograd.grad(value, x, one, retain_graph=True)[0] for one in grads])
    (found,) = torch.autograd.grad(value, x, grads, retain_graph=True, is_grads_batched=True)
    torch.testing.assert_close(found, expected)
    (found,) = torch.func.vmap(lambda one: torch.autograd.grad(value, x, one, retain_graph=True))(grads)
    torch.testing.assert_close(found, expected)


def test_models_are_explained_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = tiny.bert().to(DEVICE), {name: x.to(DEVICE) for name, x in tiny.tokens().items()}
    with monkeypatch.context() as patch:
        patch.setattr(norms, "kernels_available", lambda device: False)
        expected = conserva.relevance(model, given, 1)
    calls: list[Tensor] = []
    monkeypatch.setattr(norm_gradient_module, "norm_gradient", lambda *x: calls.append(norm_gradient(*x)) or calls[-1])
    monkeypatch.setattr(norms, "kernels_available", lambda device: True)
    found = conserva.relevance(model, given, 1)
    assert calls
    torch.testing.assert_close(found.scores(), expected.scores(), rtol=1e-4, atol=1e-6)
