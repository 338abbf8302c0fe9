"""Frozen factors of a forward pass, reused in passes with changed inputs.

Under a rule set that freezes or shares every nonlinear factor, a model is a linear map of its inputs whose
coefficients are computed in one forward pass. `FrozenFactors` records these coefficients in a first pass and returns
them in later passes, in which the inputs may differ. So the linear map can be evaluated forwards, call by call, without
the autograd functions and kernels whose gradients it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import Error
from .operations.tensors import PlainFunction


class FrozenFactors:
    """The frozen factors of a forward pass, in the order of the calls."""

    def __init__(self) -> None:
        self._values: list[Tensor] = []
        self._position: int | None = None

    def rewind(self) -> None:
        """Begin another pass, in which the recorded values are returned."""
        if self._position not in (None, len(self._values)):
            raise Error(
                "The model made fewer calls than in the first pass: its forward depends on more than its inputs."
            )
        self._position = 0

    def value(self, make: Callable[[], Tensor]) -> Tensor:
        """Return the next factor: computed by `make` and recorded in the first pass, as recorded in later passes."""
        if self._position is None:
            self._values.append(make().detach().clone())
            return self._values[-1]
        if self._position == len(self._values):
            raise Error(
                "The model made more calls than in the first pass: its forward depends on more than its inputs."
            )
        self._position += 1
        return self._values[self._position - 1]

    def frozen(self, x: Tensor) -> Tensor:
        """Return a frozen tensor."""
        return self.value(lambda: x)

    def share(self, x: Tensor, factor: float) -> Tensor:
        """Return a factor of a product: its recorded value plus `factor` times its change."""
        before = self.value(lambda: x)
        return before + factor * (x.detach() - before)

    def times(self, x: Tensor, value: Tensor, at_zero: float, slope: float) -> Tensor:
        """Return an activation: its recorded value plus (f(x) - f(0)) / x times the change of its input."""

        def ratio() -> Tensor:
            wide, made = x.detach().double(), value.detach().double()
            near = wide.abs() < torch.finfo(x.dtype).eps ** 0.5 if at_zero else wide == 0
            return torch.where(near, slope, (made - at_zero) / torch.where(near, 1.0, wide))

        before, made = self.value(lambda: x), self.value(lambda: value)
        out = made + self.value(ratio) * (x.detach() - before)
        return torch.where(torch.isfinite(x), out, made)

    def normed(
        self, x: Tensor, scale: Callable[[], Tensor], axes: Sequence[int], centred: bool, weight: Any, bias: Any
    ) -> Tensor:
        """Return a norm: (x - mean) times the recorded scale."""
        kept, x = self.value(scale), x.detach()
        out = (x - x.mean(tuple(axes), keepdim=True) if centred else x) * kept
        out = out if weight is None else out * weight
        return out if bias is None else out + bias

    def choices(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """Return the result of a call, with choices by value, such as the experts of a token, as in the first pass."""
        if isinstance(out, Tensor):
            is_choice = not out.is_floating_point() and not out.is_complex()
            return self.value(lambda: out) if is_choice and _any_live(args) else out
        name = getattr(function, "__name__", "")
        if name not in ("topk", "sort", "max", "min") or not _any_live(args) or not isinstance(out, tuple):
            return out
        given = (*args, *(kwargs[key] for key in ("k", "dim") if key in kwargs))
        position = 2 if name == "topk" else 1
        dim = given[position] if len(given) > position and isinstance(given[position], int) else -1
        indices, x = self.value(lambda: out[1]), args[0]
        wide = indices if indices.dim() == x.dim() else indices.unsqueeze(dim)
        values = x.gather(dim, wide)
        return type(out)((values if wide is indices else values.squeeze(dim), indices))


class WithValue(PlainFunction):
    """Replaces the value of a live tensor and passes the gradient on unchanged."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, value: list[Tensor]) -> Tensor:
        return torch.empty_like(out).copy_(value[0])  # with the strides of the model's own tensor

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def with_value(out: Tensor, value: Tensor) -> Tensor:
    """Return `out` with another value and the same gradient."""
    return WithValue.apply(out, [value])  # type: ignore[no-any-return]


def _any_live(args: Iterable[Any]) -> bool:
    return any(isinstance(x, Tensor) and x.requires_grad for x in args)
