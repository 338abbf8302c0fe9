"""Calls that put constants beside or in place of live values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .elementwise import forget_trail
from .live import live

if TYPE_CHECKING:
    from ..propagation import Propagation
    from .live import Reader


def concatenate(context: Propagation, function: Callable[..., Any], tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    """Read `cat` and `stack`: what is not live is a constant of the result, class tokens among it."""
    tensors = [context.constant(tensor) for tensor in tensors]
    out = function(tensors, *args, **kwargs)
    if context.books is not None and live(out):
        for i, tensor in enumerate(tensors):
            if not live(tensor) and tensor.numel():
                alone = [x if i == j else torch.zeros_like(x) for j, x in enumerate(tensors)]
                with torch.no_grad():
                    context.book(out, function(alone, *args, **kwargs), of=tensor, joined=True)
    return out


def where(context: Propagation, function: Callable[..., Any], condition: Any, a: Any = None, b: Any = None) -> Any:
    """Read `where`, and `x.where(condition, y)`."""
    if a is None:
        return function(condition)
    if isinstance(condition, Tensor) and condition.dtype != torch.bool:  # the method: the first is a value
        condition, a, method = a, condition, True
    else:
        method = False
    out = function(a, condition, b) if method else function(condition, a, b)
    if live(out) and live(a) != live(b):
        constant, chosen = (b, ~condition) if live(a) else (a, condition)
        context.book(out, constant, where=chosen)
    return out


def fill(context: Propagation, function: Callable[..., Any], x: Any, mask: Any, value: Any) -> Any:
    """Read `masked_fill`."""
    if function.__name__.endswith("_"):
        forget_trail(x)
    out = function(x, mask, value)
    if live(out) and not live(value):
        context.book(out, value, where=mask)
    return out


def assign(context: Propagation, function: Callable[..., Any], x: Tensor, index: Any, value: Any) -> Any:
    """Read `x[index] = value`."""
    before = None if live(x) or context.books is None else x.detach().clone()
    forget_trail(x)
    function(x, index, value)
    if not live(x):
        return
    if before is not None:  # live values among constants
        before[index] = 0
        if before.any():
            context.book(x, before, joined=True)
    elif not live(value) and context.books is not None:
        placed = torch.zeros_like(x)
        placed[index] = value
        context.book(x, placed, of=value, joined=True)


READERS: dict[str, Reader] = {
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), concatenate),
    "where": where,
    **dict.fromkeys(("masked_fill", "masked_fill_"), fill),
    "__setitem__": assign,
}
