"""Look-ups of token ids in embedding tables: explained ids become leaves of the graph there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import Error
from ..token_ids import Ids, follow, ids_in, plain
from .detached_values import mark
from .tensors import live

if TYPE_CHECKING:
    from ..context import Propagation
    from .tensors import Reader


class LookUp(NamedTuple):
    """A look-up of ids in a table."""

    table: Tensor
    ids: Ids
    shadow: Callable[[Tensor, torch.Size], Tensor] | None = None
    """Returns the shadow of the result, given that of the ids; None if the result has a row for each id, in order."""


def embedding(
    context: Propagation, function: Callable[..., Any], input: Any, weight: Any, *args: Any, **kwargs: Any
) -> Any:
    """Read `embedding` of ids that do not come from an input: the result is a constant."""
    out = function(input, weight, *args, **kwargs)
    context.name_as(out, weight)
    return out


def call_with_ids(
    context: Propagation, reader: Reader, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Make a call that has `Ids` among its arguments: a look-up, or a call that moves or compares them."""
    name = getattr(function, "__name__", "")
    if name == "embedding_bag":
        return _bag(context, *args, **kwargs)
    look_up = _look_up(context, name, args, kwargs)
    if look_up is not None:
        rows = function(*plain(args), **{key: plain(x) for key, x in kwargs.items()})
        return _explained(context, look_up, rows)
    if any(map(live, args)) or any(map(live, kwargs.values())):
        return reader(context, function, *plain(args), **{key: plain(x) for key, x in kwargs.items()})
    _refuse_one_hot(context, name, args, kwargs)
    out = follow(function, args, kwargs)
    # Floats computed from ids in another way, such as counts, depend on the input without a gradient. Integers that are
    # not explained, such as image sizes, are constants.
    explained = () if context.sources is None else context.sources.inputs
    names = {name for ids in ids_in([*args, *kwargs.values()]) for name in ids.conserva_origin.names}
    return out if names.isdisjoint(explained) else mark(context, out, function)


def has_ids(index: Any) -> bool:
    """Return whether an index contains `Ids`, which torch does not report among the types of a call's arguments."""
    return type(index) is Ids or (type(index) is tuple and any(type(entry) is Ids for entry in index))


def _explained(context: Propagation, look_up: LookUp, rows: Tensor) -> Tensor:
    """Return the rows of a table, with those of explained ids as leaves."""
    assert context.sources is not None
    out = context.sources.looked_up(context, look_up.ids, look_up.table, rows, look_up.shadow)
    context.name_as(out, look_up.table)
    return out


def _look_up(context: Propagation, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LookUp | None:
    """Return the look-up that a call is; None if it is not a look-up of `Ids` in a floating-point table."""
    if name == "embedding":  # torch.nn.functional takes (ids, table), torch takes (table, ids)
        a, b, *_ = (*args, *(kwargs[key] for key in ("input", "weight", "indices") if key in kwargs))
        look_up = LookUp(b, a) if type(a) is Ids else LookUp(a, b)
        return look_up if _is_table(look_up.table) else None
    if name in _MATRIX_PRODUCTS and len(args) == 2 and _of_one_hot(args[0]) is not None:
        ids = _of_one_hot(args[0])
        return LookUp(args[1], ids) if ids is not None and _is_table(args[1]) else None
    if name not in _INDEXING or not _is_table(args[0]):
        return None
    assert context.sources is not None
    # Computed tensors are indexed too, such as weights of experts: only parameters and buffers are tables.
    if context.parameter_of(args[0]) is None and not context.sources.keeps(args[0]):
        return None
    table, *rest = (*args, *(kwargs[key] for key in ("dim", "index", "indices") if key in kwargs))
    if name == "__getitem__":
        return _by_index(table, rest[0])
    ids = next((arg for arg in rest if type(arg) is Ids), None)
    if ids is None:
        return None
    if name == "index_select":
        dim = next(arg for arg in rest if isinstance(arg, int)) % table.dim()
        return LookUp(table, ids, None if dim == 0 else lambda shadow, shape: _along(shadow, dim, shape))
    return LookUp(table, ids)  # gather and take have one element in the result for each id


def _is_table(x: Any) -> bool:
    return isinstance(x, Tensor) and type(x) is not Ids and x.is_floating_point() and not live(x)


def _along(shadow: Tensor, dim: int, shape: torch.Size) -> Tensor:
    return shadow.view(*[1] * dim, -1, *[1] * (len(shape) - dim - 1)).expand(shape)


def _by_index(table: Tensor, index: Any) -> LookUp | None:
    """Return the look-up that `table[index]` is; None if no ids are in the index."""
    entries = index if type(index) is tuple else (index,)
    given = ids_in(entries)
    if len(given) != 1:
        if given:
            raise Error(
                "table[ids, other_ids]: a look-up by several tensors of ids is not supported. Pass the name of the "
                "embedding module as at='...'."
            )
        return None
    (ids,) = given
    if entries[0] is ids and all(_is_whole(entry) for entry in entries[1:]):
        return LookUp(table, ids)
    where = next(i for i, entry in enumerate(entries) if entry is ids)
    before = entries[:where]

    def shadow(own: Tensor, shape: torch.Size) -> Tensor:
        # The same index, applied to a table that has one row for each id, filled with the shadow of that id.
        after = sum(entry is not None for entry in entries[where + 1 :])
        dim = table.dim() - 1 - after if Ellipsis in before else sum(entry is not None for entry in before)
        size = [own.numel() if i == dim else n for i, n in enumerate(table.shape)]
        numbers = _along(own.reshape(-1), dim, torch.Size(size))
        rows = torch.arange(own.numel(), device=own.device).view(own.shape)
        return numbers[tuple(rows if entry is ids else entry for entry in entries)]

    return LookUp(table, ids, shadow)


def _is_whole(entry: Any) -> bool:
    return entry is Ellipsis or (isinstance(entry, slice) and entry == slice(None))


def _bag(context: Propagation, input: Any, weight: Any, offsets: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Read `embedding_bag` as a look-up of rows, and an `embedding_bag` of these rows."""
    named = dict(zip(_BAG, args, strict=False)) | kwargs
    ids, table = (
        (weight, input) if type(weight) is Ids else (input, weight)
    )  # torch.embedding_bag takes the table first
    if type(ids) is not Ids or named.get("padding_idx") is not None or named.get("max_norm") is not None:
        raise Error(
            "embedding_bag with padding_idx or max_norm is not supported: use an embedding, and a sum or a mean."
        )
    rows = _explained(context, LookUp(table, ids), F.embedding(plain(ids), table))
    each = torch.arange(ids.numel(), device=rows.device).view(ids.shape)
    return F.embedding_bag(each, rows.reshape(-1, rows.shape[-1]), plain(offsets), **named)


def _of_one_hot(x: Any) -> Ids | None:
    return getattr(x, "conserva_one_hot", None) if type(x) is Ids else None


def _refuse_one_hot(context: Propagation, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise if floating-point one-hot vectors of an explained input are used other than in a product with a table."""
    assert context.sources is not None
    for ids in ids_in([*args, *kwargs.values()]):
        if ids.is_floating_point() and name not in _HARMLESS and context.sources.explains(ids):
            raise Error(
                f"The model changes one-hot vectors of {' and '.join(sorted(ids.conserva_origin.names))} by {name} "
                "before it multiplies them by an embedding table. Pass the name of the embedding module as at='...'."
            )


_BAG = ("max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights", "include_last_offset")
_INDEXING = {"__getitem__", "index_select", "gather", "take", "take_along_dim"}
_MATRIX_PRODUCTS = {"matmul", "__matmul__", "mm", "bmm", "linear"}
_HARMLESS = {"__get__", "dim", "size", "to", "type_as", "float", "double", "half", "bfloat16", "numel", "type"}

READERS: dict[str, Reader] = {"embedding": embedding}
