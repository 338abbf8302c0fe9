"""The GPU kernel for the gradient of `f(x) * up`, against float64; without a GPU in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="the kernel is written in Triton")

from conserva.kernels.gate_gradients import KINDS, gate_gradients

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
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
    found_x, found_up = gate_gradients(grad, x, up, kind=kind, ratio=ratio, share=share, slope=SLOPES[kind])
    tolerance = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    for found, expected in ((found_x, expected_x), (found_up, expected_up)):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def test_every_element_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, float("nan")))
    grad, x, up = (torch.randn(5000, device=DEVICE) for _ in range(3))
    for found in gate_gradients(grad, x, up, kind="silu", ratio=False, share=1.0, slope=0.5):
        assert torch.isfinite(found).all()
