"""What tests share: replica models."""

import torch
from torch import Tensor

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def propagated(rules, function, *inputs: Tensor, upper: Tensor) -> list[Tensor]:
    """R = x * dF/dx under rules, where the relevance that arrives is `output * upper`."""
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    with rules:
        output = function(*inputs)
    grads = torch.autograd.grad((output * upper).sum(), inputs, allow_unused=True)
    return [x.detach() * (torch.zeros_like(x) if g is None else g) for x, g in zip(inputs, grads, strict=True)]
