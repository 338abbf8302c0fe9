"""A softmax over groups of rows, as graph libraries write it: exponentials, divided by the sums of their groups.

The calls are exp, a sum by index, what hands each row the sum of its group, and a division. The exponentials are
remembered along the way, so that the division is known for what it is: attention along the edges of a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import arithmetic, rows
from .activations import activation
from .live import frozen, live, untouched

if TYPE_CHECKING:
    from ..propagation import Propagation
    from .live import Reader


@dataclass(frozen=True)
class Sums:
    """What a tensor is: sums of the exponentials of `scores`, by these calls one after the other."""

    exponentials: Tensor
    scores: Tensor
    calls: tuple[Callable[[Tensor], Tensor], ...] = ()

    def then(self, out: Tensor, call: Callable[[Tensor], Tensor]) -> Tensor:
        """Return `out`, known as what a further call made of the sums."""
        return _remember(out, Sums(self.exponentials, self.scores, (*self.calls, call)))

    def softmax(self) -> Tensor:
        """Return the exponentials divided by the sums, made anew of the scores."""
        exponentials = sums = self.scores.exp()
        for call in self.calls:
            sums = call(sums)
        return exponentials / sums


def _remember(x: Tensor, sums: Sums) -> Tensor:
    # A tensor that is changed in place later is no longer what it was.
    x.__dict__["conserva_sums"] = (sums, x._version, sums.scores._version)
    return x


def _sums(x: object) -> Sums | None:
    found = getattr(x, "conserva_sums", None)
    if found is None or not isinstance(x, Tensor):
        return None
    sums, version, scores_version = found
    return sums if (x._version, sums.scores._version) == (version, scores_version) else None


def exponential(context: Propagation, function: Callable[..., Any], input: Any, **kwargs: Any) -> Any:
    """Read `exp`: an activation, unless it turns out to be a part of a softmax."""
    out = activation(context, function, input, **kwargs)
    if kwargs:
        return out
    context.read_also(AFTER_EXPONENTIALS)
    return _remember(out, Sums(out.detach(), input))


def scatter_add(context: Propagation, function: Callable[..., Any], input: Any, dim: int, index: Any, src: Any) -> Any:
    """Read sums by index, also in place."""
    start, before = input, _sums(src)
    if before is None or live(start):
        return function(input, dim, index, src)
    start = start.clone()
    return before.then(function(input, dim, index, src), lambda x: start.scatter_add(dim, index, x))


def segment_reduce(
    context: Propagation, function: Callable[..., Any], data: Any, reduce: str, *args: Any, **kwargs: Any
) -> Any:
    """Read sums over groups of rows that lie one after the other."""
    before, out = _sums(data), function(data, reduce, *args, **kwargs)
    if before is None or reduce != "sum":
        return out
    return before.then(out, lambda x: function(x, reduce, *args, **kwargs))


def _still_sums(read: Reader) -> Reader:
    """Return the reader of a call that picks rows, repeats them or adds a number: sums stay known as sums."""

    def read_on(context: Propagation, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = _sums(args[0]) if args else None
        out = read(context, function, *args, **kwargs)
        if before is None or not before.calls or any(isinstance(x, Tensor) and x.is_floating_point() for x in args[1:]):
            return out
        return before.then(out, lambda x: function(x, *args[1:], **kwargs))

    return read_on


def divide(context: Propagation, function: Callable[..., Any], input: Any, other: Any, **kwargs: Any) -> Any:
    """Read a division, which is a softmax if it divides exponentials by their own sums."""
    above, below = _sums(input), _sums(other)
    if kwargs or above is None or below is None or above.exponentials is not below.exponentials or above.calls:
        return arithmetic.divide(context, function, input, other, **kwargs)
    context.coverage.attention_seen = True
    if not live(below.scores):
        return function(input, other)
    if context.meet("attention", torch.softmax) == "freeze":
        return function(frozen(input), frozen(other))
    return below.softmax()


READERS: dict[str, Reader] = {
    "exp": exponential,
    **dict.fromkeys(("scatter_add", "scatter_add_"), scatter_add),
    "segment_reduce": segment_reduce,
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), divide),
}

AFTER_EXPONENTIALS: dict[str, Reader] = {
    **{name: _still_sums(arithmetic.READERS[name]) for name in ("add", "__add__", "__radd__")},
    **{name: _still_sums(rows.READERS[name]) for name in ("__getitem__", "index_select")},
    "repeat_interleave": _still_sums(untouched),
}
"""How calls that keep sums known as sums are read, as soon as there can be any: they are many in every model."""
