"""Look-ups in tables: where token ids become numbers, and relevance ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import Error
from ..token_ids import Ids, follow, ids_in, plain
from .lost import mark
from .tensors import live

if TYPE_CHECKING:
    from ..context import Propagation
    from .tensors import Reader


class LookUp(NamedTuple):
    """A table, the ids that it is indexed by, and for each element of the result the element of the ids."""

    table: Tensor
    ids: Ids
    shadow: Callable[[Tensor, torch.Size], Tensor] | None = None
    """Makes of the ids' shadow that of the result; None where the result has a row for each id, in their order."""


def embedding(
    context: Propagation, function: Callable[..., Any], input: Any, weight: Any, *args: Any, **kwargs: Any
) -> Any:
    """Read `embedding` of ids that are not an input's: its rows are constants."""
    out = function(input, weight, *args, **kwargs)
    context.name_as(out, weight)
    return out


def call_with_ids(
    context: Propagation, reader: Reader, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Make a call that has `Ids` among its arguments: a look-up, or one that moves or compares them."""
    name = getattr(function, "__name__", "")
    if name == "embedding_bag":
        return _bag(context, *args, **kwargs)
    found = _look_up(context, name, args, kwargs)
    if found is not None:
        rows = function(*plain(args), **{key: plain(x) for key, x in kwargs.items()})
        return _explained(context, found, rows)
    if any(map(live, args)) or any(map(live, kwargs.values())):
        return reader(context, function, *plain(args), **{key: plain(x) for key, x in kwargs.items()})
    _refuse_one_hot(context, name, args, kwargs)
    out = follow(function, args, kwargs)
    # Numbers that are made of ids in another way, as by counting them, depend on the input without a gradient. Other
    # integers, as the sizes of images, are not explained.
    explained = () if context.sources is None else context.sources.inputs
    names = {name for one in ids_in([*args, *kwargs.values()]) for name in one.conserva_origin.names}
    return out if names.isdisjoint(explained) else mark(context, out, function)


def has_ids(index: Any) -> bool:
    """Tell whether an index has `Ids` in it: torch tells of those among other arguments, not of these."""
    return type(index) is Ids or (type(index) is tuple and any(type(one) is Ids for one in index))


def _explained(context: Propagation, found: LookUp, rows: Tensor) -> Tensor:
    """Return the rows of a table, with those of explained ids as leaves."""
    assert context.sources is not None
    out = context.sources.looked_up(context, found.ids, found.table, rows, found.shadow)
    context.name_as(out, found.table)
    return out


def _look_up(context: Propagation, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LookUp | None:
    """Return what a call looks up, if it is a look-up by `Ids` in a table of numbers."""
    if name == "embedding":  # of torch.nn.functional: ids, table; of torch: table, ids
        a, b, *_ = (*args, *(kwargs[key] for key in ("input", "weight", "indices") if key in kwargs))
        found = LookUp(b, a) if type(a) is Ids else LookUp(a, b)
        return found if _is_table(found.table) else None
    if name in _MATRIX_PRODUCTS and len(args) == 2 and _of_one_hot(args[0]) is not None:
        ids = _of_one_hot(args[0])
        return LookUp(args[1], ids) if ids is not None and _is_table(args[1]) else None
    if name not in _INDEXING or not _is_table(args[0]):
        return None
    assert context.sources is not None
    # What the model computed is indexed too, as weights of experts are: only what it keeps is a table.
    if context.parameter_of(args[0]) is None and not context.sources.keeps(args[0]):
        return None
    table, *rest = (*args, *(kwargs[key] for key in ("dim", "index", "indices") if key in kwargs))
    if name == "__getitem__":
        return _by_index(table, rest[0])
    ids = next((one for one in rest if type(one) is Ids), None)
    if ids is None:
        return None
    if name == "index_select":
        dim = next(one for one in rest if isinstance(one, int)) % table.dim()
        return LookUp(table, ids, None if dim == 0 else lambda shadow, shape: _along(shadow, dim, shape))
    return LookUp(table, ids)  # an element of the result for each of the ids


def _is_table(x: Any) -> bool:
    return isinstance(x, Tensor) and type(x) is not Ids and x.is_floating_point() and not live(x)


def _along(shadow: Tensor, dim: int, shape: torch.Size) -> Tensor:
    return shadow.view(*[1] * dim, -1, *[1] * (len(shape) - dim - 1)).expand(shape)


def _by_index(table: Tensor, index: Any) -> LookUp | None:
    """Return what `table[index]` looks up."""
    entries = index if type(index) is tuple else (index,)
    found = ids_in(entries)
    if len(found) != 1:
        if found:
            raise Error("table[ids, other_ids]: a look-up by several ids at once is not read. Explain it at='module'.")
        return None
    (ids,) = found
    if entries[0] is ids and all(_is_whole(one) for one in entries[1:]):
        return LookUp(table, ids)
    where = next(i for i, one in enumerate(entries) if one is ids)
    before = entries[:where]

    def shadow(own: Tensor, shape: torch.Size) -> Tensor:
        # The same index into a table that has a row for each of the ids, and says which.
        after = sum(one is not None for one in entries[where + 1 :])
        dim = table.dim() - 1 - after if Ellipsis in before else sum(one is not None for one in before)
        size = [own.numel() if i == dim else n for i, n in enumerate(table.shape)]
        numbers = _along(own.reshape(-1), dim, torch.Size(size))
        rows = torch.arange(own.numel(), device=own.device).view(own.shape)
        return numbers[tuple(rows if one is ids else one for one in entries)]

    return LookUp(table, ids, shadow)


def _is_whole(entry: Any) -> bool:
    return entry is Ellipsis or (isinstance(entry, slice) and entry == slice(None))


def _bag(context: Propagation, input: Any, weight: Any, offsets: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Read `embedding_bag`: its rows are looked up first, and then put into bags."""
    named = dict(zip(_BAG, args, strict=False)) | kwargs
    ids, table = (weight, input) if type(weight) is Ids else (input, weight)  # torch's own takes the table first
    if type(ids) is not Ids or named.get("padding_idx") is not None or named.get("max_norm") is not None:
        raise Error("embedding_bag with padding_idx or max_norm is not read: use an embedding and a sum or a mean.")
    rows = _explained(context, LookUp(table, ids), F.embedding(plain(ids), table))
    each = torch.arange(ids.numel(), device=rows.device).view(ids.shape)
    return F.embedding_bag(each, rows.reshape(-1, rows.shape[-1]), plain(offsets), **named)


def _of_one_hot(x: Any) -> Ids | None:
    return getattr(x, "conserva_one_hot", None) if type(x) is Ids else None


def _refuse_one_hot(context: Propagation, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise where one-hot vectors of an input's ids, as numbers, are used otherwise than in a product with a table."""
    assert context.sources is not None
    for one in ids_in([*args, *kwargs.values()]):
        if one.is_floating_point() and name not in _HARMLESS and context.sources.explains(one):
            raise Error(
                f"One-hot vectors of {' and '.join(sorted(one.conserva_origin.names))} are changed by {name} before "
                "they meet a table of embeddings. Name the module that turns ids into numbers: at='...'."
            )


_BAG = ("max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights", "include_last_offset")
_INDEXING = {"__getitem__", "index_select", "gather", "take", "take_along_dim"}
_MATRIX_PRODUCTS = {"matmul", "__matmul__", "mm", "bmm", "linear"}
_HARMLESS = {"__get__", "dim", "size", "to", "type_as", "float", "double", "half", "bfloat16", "numel", "type"}

READERS: dict[str, Reader] = {"embedding": embedding}
