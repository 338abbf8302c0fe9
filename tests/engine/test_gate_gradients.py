"""The GPU kernels for the gradients of `f(x)` and `f(x) * up`, against float64; else in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="the kernel is written in Triton")

import conserva
import tiny
from conserva.engine.kernels import gate_gradients as gate_gradients_module
from conserva.engine.kernels.gate_gradients import KINDS, gate_gradients, ratio_gradient
from conserva.engine.operations import gated
from conserva.engine.operations.elementwise import Activation, Call

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
SLOPES = {"silu": 0.5, "gelu": 0.5, "gelu_tanh": 0.5, "relu": 0.0}


def test_every_kind_is_tested() -> None:
    assert set(FUNCTIONS) == set(KINDS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("ratio", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_float64(kind: str, ratio: bool, share: float, dtype: torch.dtype) -> None:
    grad, x, up = (torch.randn(37, 131).mul(3).to(DEVICE, dtype) for _ in range(3))
    x[:3] = 0
    x[3, 0], x[3, 1] = 40, -40
    function, source = FUNCTIONS[kind], x.double().requires_grad_()
    value = function(source)
    if ratio:
        slope = torch.where(source == 0, SLOPES[kind], value / source).detach()
    else:
        (slope,) = torch.autograd.grad(value.sum(), source)
    expected_x, expected_up = share * grad.double() * up.double() * slope, share * grad.double() * value.detach()
    found_x, found_up = gate_gradients(grad, x, up, kind=kind, ratio=ratio, share=share)
    tolerance = TOLERANCES[dtype]
    for found, expected in ((found_x, expected_x), (found_up, expected_up)):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_an_activation_alone(kind: str, dtype: torch.dtype) -> None:
    grad, x = (torch.randn(37, 131).mul(3).to(DEVICE, dtype) for _ in range(2))
    x[:3] = 0
    x[3, 0], x[3, 1] = 40, -40
    source = x.double()
    expected = grad.double() * torch.where(source == 0, SLOPES[kind], FUNCTIONS[kind](source) / source)
    found = ratio_gradient(grad, x, kind=kind)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def test_one_that_is_differentiated_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated, "kernels_available", lambda device: True)
    grad, x = torch.randn(2, 5, 7, device=DEVICE)
    found = gated._activation_gradient(Activation(Call(F.gelu, (), {}), ratio=False), grad, x)
    torch.testing.assert_close(found, grad * torch.func.grad(lambda y: F.gelu(y).sum())(x))


@pytest.mark.parametrize(("model", "kernel"), [(tiny.bert(), "ratio_gradient"), (tiny.llama(), "gate_gradients")])
def test_models_are_explained_by_it(model: torch.nn.Module, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: x.to(DEVICE) for name, x in tiny.tokens().items()}
    with monkeypatch.context() as patch:
        patch.setattr(gated, "kernels_available", lambda device: False)
        expected = conserva.relevance(model.to(DEVICE), given, 1, rules="exact")
    plain, calls = getattr(gate_gradients_module, kernel), []
    monkeypatch.setattr(gate_gradients_module, kernel, lambda *x, **how: calls.append(1) or plain(*x, **how))
    monkeypatch.setattr(gated, "kernels_available", lambda device: True)
    found = conserva.relevance(model, given, 1, rules="exact")
    assert calls
    torch.testing.assert_close(found.scores(), expected.scores(), rtol=1e-4, atol=1e-6)


def test_every_element_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, float("nan")))
    grad, x, up = (torch.randn(5000, device=DEVICE) for _ in range(3))
    for found in gate_gradients(grad, x, up, kind="silu", ratio=False, share=1.0):
        assert torch.isfinite(found).all()
    assert torch.isfinite(ratio_gradient(grad, x, kind="silu")).all()
