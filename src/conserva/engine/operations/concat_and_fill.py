"""Concatenation, masking and assignment: calls whose result has live values and constants as separate elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .linear_origins import split
from .tensors import live, overwrite

if TYPE_CHECKING:
    from ..context import Propagation
    from .tensors import Reader


def concatenate(
    context: Propagation, function: Callable[..., Any], tensors: Sequence[Any], *args: Any, **kwargs: Any
) -> Any:
    """Read `cat` and `stack`: tensors that are not live, such as class tokens, are constants of the result."""
    tensors = [context.constant(tensor) if type(tensor) is Parameter else tensor for tensor in tensors]
    out = function(tensors, *args, **kwargs)
    if context.constants is not None and live(out) and not all(map(live, tensors)):
        for i, tensor in enumerate(tensors):
            if not live(tensor) and tensor.numel():
                others_zero = [x if i == j else torch.zeros_like(x) for j, x in enumerate(tensors)]
                with torch.no_grad():
                    context.record_constant(out, function(others_zero, *args, **kwargs), of=tensor, joined=True)
    return out


def where(context: Propagation, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Read `where(condition, input, other)`, and `input.where(condition, other)`."""
    args = (*args, *(kwargs[name] for name in ("condition", "input", "other") if name in kwargs))
    out = function(*args)
    if len(args) < 3:
        return out
    method = isinstance(args[0], Tensor) and args[0].dtype != torch.bool
    condition, a, b = (args[1], args[0], args[2]) if method else args
    if live(out) and live(a) != live(b):
        constant, chosen = (b, ~condition) if live(a) else (a, condition)
        context.record_constant(out, constant, where=chosen)
    return out


def fill(context: Propagation, function: Callable[..., Any], input: Any, mask: Any, value: Any) -> Any:
    """Read `masked_fill`."""
    out = function(input, mask, value)
    if live(out) and not live(value):
        context.record_constant(out, value, where=mask)
    return out


def fill_in_place(context: Propagation, function: Callable[..., Any], x: Any, mask: Any, value: Any) -> Any:
    """Read `masked_fill_`."""
    if live(x) and not live(value):
        return overwrite(x, fill(context, torch.masked_fill, x.clone(), mask, value))
    return function(x, mask, value)


def assign(context: Propagation, function: Callable[..., Any], x: Tensor, index: Any, value: Any) -> None:
    """Read `x[index] = value`. If it mixes live values and constants, it is done on a copy, for the ledger."""
    if context.constants is None or live(x) == live(value):
        function(x, index, value)
        return
    result, constants = x.clone(), torch.zeros_like(x)
    result[index] = value
    if live(x):
        constants[index] = value
    else:
        constants.copy_(x)
        constants[index] = 0
    if constants.any():
        context.record_constant(result, constants, of=value if live(x) else x, joined=True)
    overwrite(x, result)


READERS: dict[str, Reader] = {
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), concatenate),
    "where": where,
    "masked_fill": fill,
    "masked_fill_": fill_in_place,
    "__setitem__": assign,
    **dict.fromkeys(("chunk", "split", "split_with_sizes"), split),
}
