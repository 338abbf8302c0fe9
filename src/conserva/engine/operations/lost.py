"""Values that a model makes of its input without a gradient: under torch.no_grad, or by detach.

As a factor such a value is a constant, as if a rule had frozen it. As a summand it would take its share of the output
out of sight: it would be booked as a constant of the model, though it depends on the input. `witness` refuses that.
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

_MARK = "conserva_lost"


_SHAPE_ALONE = frozenset({
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones",
    "new_empty", "new_full", "new_tensor", "zero_",
})  # fmt: skip
"""Calls that take the shape and the type of a tensor, and not its values."""


def without_gradient(
    context: Propagation, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Make a call while gradients are off; mark what it makes of live values."""
    out = function(*args, **kwargs)
    if any(x.requires_grad or is_lost(x) for x in _valued(function, args, kwargs)):
        if function.__name__ == "__setitem__":
            mark(context, args[0], function)
        return mark(context, out, function)
    return out


def _tensors(values: Any) -> Iterator[Tensor]:
    return (x for x in tree_leaves(values) if isinstance(x, Tensor))


def _valued(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Iterator[Tensor]:
    """Yield the arguments whose values a call reads: of some calls the second tells a type or a shape alone."""
    return _tensors(args[:1] if getattr(function, "__name__", "") in _LIKE_ANOTHER else (args, kwargs))


_LIKE_ANOTHER = ("type_as", "view_as", "expand_as", "reshape_as", "to", "resize_as_")


def mark(context: Propagation, out: Any, function: Callable[..., Any]) -> Any:
    """Note that a tensor depends on the input, without a gradient; return it."""
    name = getattr(function, "__name__", str(function))
    if out is None or name in _SHAPE_ALONE:
        return out
    if context.held is not None and type(out) is Tensor and out.is_floating_point() and not out.requires_grad:
        out = context.held.value(partial(_itself, out)).clone()
    for x in out if isinstance(out, (tuple, list)) else (out,):
        if type(x) is Tensor and x.is_floating_point() and not x.requires_grad:
            context.notes.put(x, _MARK, name)
            context.has_lost = True
    return out


def _itself(x: Tensor) -> Tensor:
    return x


def pass_on(
    context: Propagation,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    out: Any,
) -> None:
    """Mark what a call makes of marked values, and note where it joins them with live ones."""
    name = getattr(function, "__name__", "")
    found = next((x for x in _valued(function, args, kwargs) if is_lost(x)), None)
    if found is None:
        return
    if name == "__setitem__":
        out = args[0]
    mark(context, out, function)
    if name in _JOINING and live(out):
        context.lost_sums[out.grad_fn] = made_by(found)


_JOINING = frozenset({
    "index_add", "index_add_", "index_copy", "index_copy_", "index_put", "index_put_", "masked_scatter",
    "masked_scatter_", "maximum", "minimum", "scatter", "scatter_", "scatter_add", "scatter_add_", "slice_scatter",
    "select_scatter", "vstack", "hstack", "dstack", "copy_", "__setitem__",
})  # fmt: skip
"""Calls that add values to others or put them beside, and that no ledger books."""


def is_lost(x: object) -> bool:
    """Tell whether a tensor depends on the input, without a gradient."""
    return getattr(x, _MARK, None) is not None


def made_by(x: object) -> str:
    """Return the call that made a value without a gradient of the input; nothing for other values."""
    return str(getattr(x, _MARK, ""))


def detach(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read `detach`."""
    out = function(input, *args, **kwargs)
    return mark(context, out, function) if live(input) or is_lost(input) else out


def detach_in_place(context: Propagation, function: Callable[..., Any], x: Any) -> Any:
    """Read `detach_`."""
    was_live = live(x) or is_lost(x)
    out = function(x)
    return mark(context, out, function) if was_live else out


READERS: dict[str, Reader] = {"detach": detach, "detach_": detach_in_place}
