"""Values that a model computes from its input without a gradient: under torch.no_grad, or by detach.

As a factor, such a value is a constant, as if a rule had frozen it. As a summand, it would be recorded in the ledger as
a constant of the model although it depends on the input, and its share of the output would be lost: `graph_check`
refuses that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from .tensors import live

if TYPE_CHECKING:
    from ..context import Propagation
    from .tensors import Reader

_MARK = "conserva_detached"


_SHAPE_ALONE = frozenset({
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones",
    "new_empty", "new_full", "new_tensor", "zero_",
})  # fmt: skip
"""Calls that use the shape and the dtype of a tensor, but not its values."""


def without_gradient(
    context: Propagation, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Make a call while gradients are disabled; mark its result if it depends on live values."""
    out = function(*args, **kwargs)
    if any(x.requires_grad or is_detached(x) for x in _valued(function, args, kwargs)):
        if function.__name__ == "__setitem__":
            mark(context, args[0], function)
        return mark(context, out, function)
    return out


def _tensors(values: Any) -> Iterator[Tensor]:
    return (x for x in tree_leaves(values) if isinstance(x, Tensor))


def _valued(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Iterator[Tensor]:
    """Yield the tensors whose values a call uses: of their second argument, some calls use only dtype or shape."""
    return _tensors(args[:1] if getattr(function, "__name__", "") in _LIKE_ANOTHER else (args, kwargs))


_LIKE_ANOTHER = ("type_as", "view_as", "expand_as", "reshape_as", "to", "resize_as_")


def mark(context: Propagation, out: Any, function: Callable[..., Any]) -> Any:
    """Mark a tensor as depending on the input without a gradient, and return it."""
    name = getattr(function, "__name__", str(function))
    if out is None or name in _SHAPE_ALONE:
        return out
    if context.frozen_factors is not None and type(out) is Tensor and out.is_floating_point() and not out.requires_grad:
        out = context.frozen_factors.value(partial(_itself, out)).clone()
    for x in out if isinstance(out, (tuple, list)) else (out,):
        if type(x) is Tensor and x.is_floating_point() and not x.requires_grad:
            context.attributes.set(x, _MARK, name)
            context.has_detached = True
    return out


def _itself(x: Tensor) -> Tensor:
    return x


def propagate_mark(
    context: Propagation,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    out: Any,
) -> None:
    """Mark the result of a call that uses marked values, and record where it combines them with live ones."""
    name = getattr(function, "__name__", "")
    marked = next((x for x in _valued(function, args, kwargs) if is_detached(x)), None)
    if marked is None:
        return
    if name == "__setitem__":
        out = args[0]
    mark(context, out, function)
    if name in _JOINING and live(out):
        context.detached_sums[out.grad_fn] = detached_by(marked)


_JOINING = frozenset({
    "index_add", "index_add_", "index_copy", "index_copy_", "index_put", "index_put_", "masked_scatter",
    "masked_scatter_", "maximum", "minimum", "scatter", "scatter_", "scatter_add", "scatter_add_", "slice_scatter",
    "select_scatter", "vstack", "hstack", "dstack", "copy_", "__setitem__",
})  # fmt: skip
"""Calls that add or insert values into a tensor, and for which no constants are recorded in the ledger."""


def is_detached(x: object) -> bool:
    """Return whether a tensor depends on the input without a gradient."""
    return getattr(x, _MARK, None) is not None


def detached_by(x: object) -> str:
    """Return the call that computed a value from the input without a gradient; "" for other values."""
    return str(getattr(x, _MARK, ""))


def detach(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read `detach`."""
    out = function(input, *args, **kwargs)
    return mark(context, out, function) if live(input) or is_detached(input) else out


def detach_in_place(context: Propagation, function: Callable[..., Any], x: Any) -> Any:
    """Read `detach_`."""
    was_live = live(x) or is_detached(x)
    out = function(x)
    return mark(context, out, function) if was_live else out


READERS: dict[str, Reader] = {"detach": detach, "detach_": detach_in_place}
