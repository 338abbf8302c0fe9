"""The linear layer that computed a tensor, by which it can be recomputed and its gradient passed on to the input."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..context import Propagation

_MARK = "conserva_linear_origin"


@dataclass(frozen=True)
class LinearOrigin:
    """The input, weight and bias of the linear layer that computed a tensor. The input is a weak reference."""

    input: weakref.ref[Tensor]
    input_version: int
    weight: Tensor
    bias: Tensor | None
    version: int
    """The version of the output: if it was changed in place since, the origin is no longer valid."""

    def of_part(self, part: Tensor, start: int) -> LinearOrigin:
        """Return the origin of some columns of the output, beginning with column `start`."""
        size = part.shape[-1]
        bias = None if self.bias is None else self.bias.narrow(0, start, size)
        return replace(self, weight=self.weight.narrow(0, start, size), bias=bias, version=part._version)


def set_linear_origin(context: Propagation, out: Any, x: Any, weight: Any, bias: Any) -> None:
    """Record that `out` is `F.linear(x, weight, bias)`, if it can be recomputed in this way."""
    if weight.dim() == 2 and out.dim() > 1 and x.dtype == weight.dtype == out.dtype:
        context.attributes.set(out, _MARK, LinearOrigin(weakref.ref(x), x._version, weight, bias, out._version))


def linear_origin_of(x: Tensor) -> tuple[LinearOrigin, Tensor] | None:
    """Return the layer that computed `x` and its input; None if there is none, or one of the two was changed since."""
    origin: LinearOrigin | None = getattr(x, _MARK, None)
    if origin is None or origin.version != x._version:
        return None
    given = origin.input()
    return None if given is None or given._version != origin.input_version else (origin, given)


def split(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read `chunk` and `split`: along the last dimension, each part is the output of a part of the layer."""
    parts = function(input, *args, **kwargs)
    layer = None if context.keeper is None else linear_origin_of(input)
    if layer is None:
        return parts
    start = 0
    for part in parts:
        if part.shape[:-1] == input.shape[:-1]:
            context.attributes.set(part, _MARK, layer[0].of_part(part, start))
            start += part.shape[-1]
    return parts
