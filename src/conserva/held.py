"""Frozen factors held at their values while the inputs change.

Under a rule set that freezes or shares every nonlinear factor, a model is a linear map of its inputs whose
coefficients are the values of one forward pass. `Held` records these coefficients in a first pass and hands them out
again in later ones, in which the inputs may have changed. So the linear map can be evaluated forwards, call by call,
without the autograd functions and kernels whose gradients it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import Error


class Held:
    """The frozen factors of a forward pass, in the order in which they were met."""

    def __init__(self) -> None:
        self._values: list[Tensor] = []
        self._position: int | None = None

    def rewind(self) -> None:
        """Begin another pass, which gets the recorded values."""
        if self._position not in (None, len(self._values)):
            raise Error("The model made other calls than in the pass before: its forward depends on more than inputs.")
        self._position = 0

    def value(self, make: Callable[[], Tensor]) -> Tensor:
        """Return the next factor: in the first pass as it is made, later as it was."""
        if self._position is None:
            self._values.append(make().detach().clone())
            return self._values[-1]
        if self._position == len(self._values):
            raise Error("The model made more calls than in the pass before: its forward depends on more than inputs.")
        self._position += 1
        return self._values[self._position - 1]

    def frozen(self, x: Tensor) -> Tensor:
        """Return a tensor as it was."""
        return self.value(lambda: x)

    def share(self, x: Tensor, factor: float) -> Tensor:
        """Return a factor of a product: it changes by its share of what it would change by."""
        before = self.value(lambda: x)
        return before + factor * (x.detach() - before)

    def times(self, x: Tensor, value: Tensor, coefficient: Callable[[], Tensor]) -> Tensor:
        """Return an activation: it changes by its coefficient times what its input changes by."""
        ratio, before, made, x = self.value(coefficient), self.value(lambda: x), self.value(lambda: value), x.detach()
        out = made + ratio * (x - before)
        return torch.where(torch.isfinite(x), out, made)

    def normed(
        self, x: Tensor, scale: Callable[[], Tensor], axes: Sequence[int], centred: bool, weight: Any, bias: Any
    ) -> Tensor:
        """Return a norm: (x - mean) times a scale."""
        kept, x = self.value(scale), x.detach()
        out = (x - x.mean(tuple(axes), keepdim=True) if centred else x) * kept
        out = out if weight is None else out * weight
        return out if bias is None else out + bias


def with_value(out: Tensor, value: Tensor) -> Tensor:
    """Return a live tensor with another value: the graph behind it stays as it is."""
    return out + (value.to(out.dtype) - out).detach()
