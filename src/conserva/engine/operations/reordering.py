"""Calls that may reorder samples, which the ledger must know; and dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...errors import Error
from .copies_and_views import follow_trail_through_view
from .tensors import live

if TYPE_CHECKING:
    from ..context import Propagation
    from .tensors import Reader


def move_axes(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read `transpose`, `permute` and others, which may move the batch dimension."""
    out = function(input, *args, **kwargs)
    if getattr(input, "conserva_trail", None) is not None or not out.requires_grad:
        follow_trail_through_view(context, function, input, out, *args, **kwargs)
    if not live(input):
        return out
    if context.constants is not None and not context.constants.samples_moved and input.dim() > 1:
        context.constants.samples_moved = input.size(0) != out.size(0) or input.stride(0) != out.stride(0)
    return out


def pick_rows(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read indexing: rows selected by an index tensor are in an order that shapes do not show."""
    x = input
    out = function(x, *args, **kwargs)
    constants = context.constants
    is_named = isinstance(out, Tensor) and not out.requires_grad
    if is_named or getattr(x, "conserva_trail", None) is not None:  # false for most calls
        follow_trail_through_view(context, function, x, out, *args, **kwargs)
    if constants is None or not live(x) or not isinstance(out, Tensor) or not out.dim():
        return out
    index = args[0] if args and isinstance(args[0], tuple) else args
    by_number = function.__name__ != "__getitem__" or any(isinstance(entry, (Tensor, list)) for entry in index)
    if by_number and not x.shape[0] == out.shape[0] == constants.samples:
        constants.rows_shuffled = True
    return out


def dropout(
    context: Propagation, function: Callable[..., Any], input: Any, p: float = 0.5, training: bool = True, **kwargs: Any
) -> Any:
    """Read `dropout`, which must be disabled."""
    training = kwargs.pop("train", training)  # the name of the argument in torch.dropout
    if live(input) and training and p > 0:
        raise Error(f"The model applies dropout (p={p}): call model.eval() first.")
    return input if not training or p == 0 else function(input, p, training, **kwargs)


READERS: dict[str, Reader] = {
    **dict.fromkeys(("transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "t"), move_axes),
    **dict.fromkeys(("__getitem__", "index_select", "gather", "take_along_dim", "masked_select"), pick_rows),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"), dropout),
}
