"""Which linear layer a tensor came out of: what it can be made of anew, and where its gradient can go at once."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..context import Propagation

_MARK = "conserva_origin"


@dataclass(frozen=True)
class Origin:
    """A linear layer's input and constants. The input is held weakly: to remember it must not keep it alive."""

    input: weakref.ref[Tensor]
    input_version: int
    weight: Tensor
    bias: Tensor | None
    version: int
    """The version of the tensor that came out: changed in place since, it is no longer what the layer makes."""

    def of_part(self, part: Tensor, start: int) -> Origin:
        """Return the layer that makes the columns of a part of the output, from `start` on."""
        size = part.shape[-1]
        bias = None if self.bias is None else self.bias.narrow(0, start, size)
        return replace(self, weight=self.weight.narrow(0, start, size), bias=bias, version=part._version)


def remember(context: Propagation, out: Any, x: Any, weight: Any, bias: Any) -> None:
    """Mark `out` as what a linear layer made of `x`, if it can be made again just so."""
    if weight.dim() == 2 and out.dim() > 1 and x.dtype == weight.dtype == out.dtype:
        context.notes.put(out, _MARK, Origin(weakref.ref(x), x._version, weight, bias, out._version))


def origin_of(x: Tensor) -> tuple[Origin, Tensor] | None:
    """Return the layer that `x` came out of and its input, if both are what they were then."""
    origin: Origin | None = getattr(x, _MARK, None)
    if origin is None or origin.version != x._version:
        return None
    given = origin.input()
    return None if given is None or given._version != origin.input_version else (origin, given)


def cut(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read `chunk` and `split`: along the last axis, each part comes out of a part of the layer."""
    parts = function(input, *args, **kwargs)
    found = None if context.keeper is None else origin_of(input)
    if found is None:
        return parts
    start = 0
    for part in parts:
        if part.shape[:-1] == input.shape[:-1]:
            context.notes.put(part, _MARK, found[0].of_part(part, start))
            start += part.shape[-1]
    return parts
