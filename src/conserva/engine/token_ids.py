"""Tracking of token ids through a model: for each element, the element of the input that it comes from.

The integer arguments of a call are passed to the model as `Ids`, a tensor subclass with a shadow: a tensor of the same
shape that holds, for each element, the number of the input element that it comes from, or -1 for a constant. Torch
calls `Ids.__torch_function__` if one is among the arguments; calls that move elements are repeated on the shadow. So
ids that a model shifts, flattens, pads or repeats can be matched with the input when they are looked up in a table.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .token_id_calls import (
    CASTS,
    CONCATENATIONS,
    ELEMENTWISE,
    FLOAT_CASTS,
    FRESH,
    IN_PLACE,
    JOINS,
    MOVES,
    RESHAPED_IN_PLACE,
    VALUE_NAMES,
)

CONSTANT = -1
"""The entry of a shadow for an element that does not come from an input."""


@dataclass(eq=False)
class Origin:
    """Where the elements of a storage come from, shared by all `Ids` on that storage."""

    inputs: Inputs
    names: set[str]
    """The inputs that they may come from."""
    mixed: bool = False
    """Whether some may be constants."""
    changed: str = ""
    """The call after which it is unknown which input element each element comes from; "" if it is known."""

    def joined(self, others: Iterable[Origin], mixed: bool) -> Origin:
        """Return the origin of a tensor that combines elements of several tensors."""
        every = [self, *others]
        changed = next((origin.changed for origin in every if origin.changed), "")
        return Origin(self.inputs, set().union(*(origin.names for origin in every)), mixed, changed)


class Ids(Tensor):
    """An integer tensor that comes from a model's inputs."""

    conserva_shadow: Tensor | None
    conserva_origin: Origin
    conserva_one_hot: Ids
    """If this tensor holds one-hot vectors, possibly of a floating-point dtype: the ids that they encode."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return follow(func, args, kwargs or {})


def made(x: Tensor, shadow: Tensor | None, origin: Origin) -> Ids:
    """Return a tensor as `Ids` with a shadow and an origin."""
    with torch._C.DisableTorchFunction():
        ids = x.as_subclass(Ids)
    ids.conserva_shadow, ids.conserva_origin = shadow, origin
    origin.inputs.made.append(weakref.ref(ids))
    return ids


def plain(x: Any) -> Any:
    """Return an argument of a call with `Ids` replaced by ordinary tensors."""
    if type(x) is Ids:
        with torch._C.DisableTorchFunction():
            return x.as_subclass(Tensor)
    if type(x) in (list, tuple):
        return type(x)(map(plain, x))
    return x


def ids_in(x: Any) -> list[Ids]:
    """Return the `Ids` among some arguments."""
    if type(x) is Ids:
        return [x]
    return [ids for part in x for ids in ids_in(part)] if type(x) in (list, tuple) else []


@dataclass(eq=False)
class Inputs:
    """The integer arguments of a call of a model, with their elements numbered consecutively."""

    given: Mapping[str, Tensor]
    made: list[weakref.ref[Ids]] = field(default_factory=list)
    _shadows: dict[str, Tensor] = field(default_factory=dict)

    def opened(self) -> dict[str, Tensor]:
        """Return the tensors as `Ids`, except sparse and nested tensors, which have no storage."""
        plain = {name: x for name, x in self.given.items() if x.layout is torch.strided and not x.is_nested}
        return {name: made(x, None, Origin(self, {name})) for name, x in plain.items()}

    def start(self, name: str) -> int:
        """Return the number of a tensor's first element."""
        before = list(self.given)[: list(self.given).index(name)]
        return sum(self.given[other].numel() for other in before)

    def shadow(self, ids: Ids) -> Tensor:
        """Return the shadow of ids whose origin is known. The shadow of an unchanged input is created lazily."""
        if ids.conserva_shadow is None:
            (name,) = ids.conserva_origin.names
            if name not in self._shadows:
                x = self.given[name]
                with torch._C.DisableTorchFunction():
                    start = self.start(name)
                    numbers = torch.arange(start, start + x.numel(), device=x.device).view(x.shape)
                    # With the strides of the input, so that each view of the input has a matching view of the shadow.
                    self._shadows[name] = (
                        numbers if x.is_contiguous() else torch.empty_like(x, dtype=torch.int64).copy_(numbers)
                    )
            ids.conserva_shadow = self._shadows[name]
        return ids.conserva_shadow

    def is_whole(self, ids: Ids) -> bool:
        """Return whether ids are all elements of one input, in their order."""
        origin = ids.conserva_origin
        if len(origin.names) != 1 or origin.mixed or origin.changed:
            return False
        shadow = ids.conserva_shadow
        if shadow is None:
            return True
        first = self._shadows.get(next(iter(origin.names)))
        return (
            first is not None
            and shadow.data_ptr() == first.data_ptr()
            and shadow.numel() == first.numel()
            and first.is_contiguous()
            and shadow.is_contiguous()
        )

    def close(self) -> None:
        """Turn every `Ids` that is still referenced, by the model or its output, into an ordinary tensor."""
        for reference in self.made:
            ids = reference()
            if ids is not None:
                ids.__class__ = Tensor  # type: ignore[assignment]
                for name in ("conserva_shadow", "conserva_origin", "conserva_one_hot"):
                    ids.__dict__.pop(name, None)
        self.made.clear()


def follow(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make a call that has `Ids` among its arguments; integer results that come from inputs are returned as `Ids`."""
    with torch._C.DisableTorchFunction():  # calls on shadows must not be intercepted by rules
        out = func(*plain(args), **{name: plain(x) for name, x in kwargs.items()})
        name = getattr(func, "__name__", "")
        if _works_in_place(name):
            _write(func, name, args, kwargs)
            return None if out is None else args[0]
        if isinstance(out, Tensor):
            return _known(func, name, args, kwargs, out)
        if isinstance(out, (tuple, list)) and any(isinstance(part, Tensor) for part in out):
            if name in MOVES:
                return type(out)(_moved(func, args, kwargs, out))
            parts = [_changed(name, args, kwargs, part) if isinstance(part, Tensor) else part for part in out]
            return type(out)(parts)  # torch's named tuples, as of sort and topk, take a sequence as well
        return out


def _known(func: Callable[..., Any], name: str, args: Any, kwargs: Mapping[str, Any], out: Tensor) -> Any:
    given = ids_in([*args, *kwargs.values()])
    if name == "one_hot" or name in CASTS or name in FLOAT_CASTS:
        source = given[0] if name == "one_hot" else given[0].__dict__.get("conserva_one_hot")
        if source is not None and not source.conserva_origin.changed:
            one_hot = made(out, None, _own(source))
            one_hot.conserva_origin.changed, one_hot.conserva_one_hot = "one_hot", source
            return one_hot
    if not _can_be_ids(out) or name in FRESH or name.startswith("new_"):
        return out
    for ids in given:
        if out is ids or _is_same(out, ids):
            return ids  # `contiguous` and `to` return their argument if there is nothing to change
    if any(ids.conserva_origin.changed for ids in given):
        return _changed(name, args, kwargs, out)
    if name in CASTS:
        return made(out, given[0].conserva_origin.inputs.shadow(given[0]).to(out.device, copy=True), _own(given[0]))
    if name in MOVES or name == "__get__":
        return _moved(func, args, kwargs, [out])[0]
    if name in JOINS:
        return _joined(func, name, args, kwargs, out)
    if name in ELEMENTWISE or name.strip("_") in ELEMENTWISE:
        return _elementwise(name, args, kwargs, out)
    return _changed(name, args, kwargs, out)


def _own(ids: Ids) -> Origin:
    """Return the origin of a copy of ids, independent of the original's."""
    return ids.conserva_origin.joined([], ids.conserva_origin.mixed)


def _changed(name: str, args: Any, kwargs: Mapping[str, Any], out: Tensor) -> Tensor:
    if not _can_be_ids(out):
        return out
    first, *rest = (ids.conserva_origin for ids in ids_in([*args, *kwargs.values()]))
    origin = first.joined(rest, True)
    origin.changed = origin.changed or name.strip("_")
    return made(out, None, origin)


def _moved(func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], outs: Iterable[Any]) -> list[Any]:
    """Return the results of a call that moves elements of its first argument, as `Ids`."""
    source = args[0] if args else next(iter(kwargs.values()))
    if type(source) is not Ids:
        return _mapped(args, kwargs, outs)
    if source.conserva_origin.changed:
        return [_changed("", args, kwargs, out) for out in outs]
    shadow = source.conserva_origin.inputs.shadow(source)
    rest = {name: plain(x) for name, x in kwargs.items() if x is not source}
    if args:
        moved = func(shadow, *plain(args[1:]), **rest)
    else:
        moved = func(**{name: shadow if x is source else rest[name] for name, x in kwargs.items()})
    shadows = [moved] if isinstance(moved, Tensor) else list(moved)
    results: list[Any] = []
    for out, own in zip(outs, shadows, strict=True):
        shares = out.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
        results.append(made(out, own, source.conserva_origin if shares else _own(source)))
    return results


def _mapped(args: Any, kwargs: Mapping[str, Any], outs: Iterable[Any]) -> list[Any]:
    """Return the results of indexing an integer table by ids: other integers that come from the same elements."""
    given = ids_in([*args, *kwargs.values()])
    results = []
    for out in outs:
        shadow = None
        if len(given) == 1 and not given[0].conserva_origin.changed:
            shadow = _spread(given[0].conserva_origin.inputs.shadow(given[0]), out.shape)
        results.append(_changed("index", args, kwargs, out) if shadow is None else made(out, shadow, _own(given[0])))
    return results


def _spread(shadow: Tensor, shape: torch.Size) -> Tensor | None:
    """Return a shadow expanded to `shape`, which must begin with the shape of the shadow; None if it does not."""
    if shape[: shadow.dim()] != shadow.shape:
        return None
    return shadow.view(*shadow.shape, *[1] * (len(shape) - shadow.dim())).expand(shape).contiguous()


def _elementwise(name: str, args: Any, kwargs: Mapping[str, Any], out: Tensor) -> Tensor:
    """Return the result of arithmetic with constants: other integers that come from the same elements."""
    given = ids_in([*args, *kwargs.values()])
    first = given[0]
    if any(other is not first for other in given[1:]):
        return _changed(name, args, kwargs, out)
    shadow = first.conserva_origin.inputs.shadow(first).expand(out.shape).clone()
    return made(out, shadow, _own(first))


def _values(x: Any) -> Any:
    """Return the shadow of an argument of a call that combines elements: constants, except for `Ids`."""
    if type(x) is Ids:
        return x.conserva_origin.inputs.shadow(x)
    if isinstance(x, Tensor):
        return torch.full_like(x, CONSTANT, dtype=torch.int64)
    return type(x)(map(_values, x)) if type(x) in (list, tuple) else CONSTANT


def _on_shadows(func: Callable[..., Any], name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Make a call that combines elements of several arguments, on their shadows."""
    positions: tuple[int, ...] = (1, 2) if func is torch.where else (0, 2) if name == "where" else JOINS[name]
    if name == "pad":
        mode = kwargs.get("mode", args[2] if len(args) > 2 else "constant")
        value = {"value": CONSTANT} if mode == "constant" else {}
        named = {key: x for key, x in kwargs.items() if key not in ("value", "input")}
        return func(_values(args[0] if args else kwargs["input"]), *args[1:3], **{**named, **value})
    if name == "zero_":
        return args[0].conserva_shadow.fill_(CONSTANT)
    shadows = [_values(x) if i in positions else plain(x) for i, x in enumerate(args)]
    return func(*shadows, **{key: _values(x) if key in VALUE_NAMES else plain(x) for key, x in kwargs.items()})


def _joined(func: Callable[..., Any], name: str, args: Any, kwargs: Mapping[str, Any], out: Tensor) -> Tensor:
    first, *rest = (ids.conserva_origin for ids in ids_in([*args, *kwargs.values()]))
    mixed = first.mixed or any(origin.mixed for origin in rest)
    every: Any = args[0] if args else kwargs.get("tensors")
    if name not in CONCATENATIONS or not all(type(x) is Ids for x in every):
        mixed = True
    return made(out, _on_shadows(func, name, args, kwargs), first.joined(rest, mixed))


def _write(func: Callable[..., Any], name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Update the shadow and the origin of a tensor that a call changed in place."""
    target = args[0] if args else kwargs["input"]
    given = ids_in([*args[1:], *kwargs.values()])
    if not _can_be_ids(target):
        return
    if type(target) is not Ids:
        if not given or not _holds_values(name, args, kwargs):
            return
        _adopt(target, given[0].conserva_origin.inputs)
    origin = target.conserva_origin
    known = name in JOINS and not any(ids.conserva_origin.changed for ids in given) and not origin.changed
    known = known and not kwargs.get("accumulate") and "reduce" not in kwargs and len(args) < 5
    if name in RESHAPED_IN_PLACE and not origin.changed:
        func(origin.inputs.shadow(target), *plain(args[1:]), **kwargs)
    elif known:
        origin.inputs.shadow(target)
        _on_shadows(func, name, args, kwargs)
        origin.names.update(*(ids.conserva_origin.names for ids in given))
        origin.mixed = True
    elif (name.strip("_") not in ELEMENTWISE and name.strip("_").removeprefix("i") not in ELEMENTWISE) or given:
        origin.names.update(*(ids.conserva_origin.names for ids in given))
        origin.changed = origin.changed or name.strip("_")


def _holds_values(name: str, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call writes ids as values, rather than using them as an index."""
    if name not in JOINS:
        return True
    values = [x for i, x in enumerate(args) if i in JOINS[name]]
    return bool(ids_in([*values, *(x for key, x in kwargs.items() if key in VALUE_NAMES)]))


def _adopt(x: Tensor, inputs: Inputs) -> None:
    """Turn an ordinary tensor into `Ids` of constants; for a view, its base too."""
    base = x if x._base is None else x._base
    origin = getattr(base, "conserva_origin", None) or Origin(inputs, set(), mixed=True)
    shadow = getattr(base, "conserva_shadow", None)
    if shadow is None:
        shadow = torch.full_like(base, CONSTANT, dtype=torch.int64)
    for tensor in (base,) if base is x else (base, x):
        if type(tensor) is Ids:
            continue
        tensor.__class__ = Ids
        start = x.storage_offset() - base.storage_offset()
        own = shadow if tensor is base else shadow.as_strided(x.shape, x.stride(), start)
        tensor.conserva_shadow, tensor.conserva_origin = own, origin  # type: ignore[attr-defined]
        inputs.made.append(weakref.ref(tensor))  # type: ignore[arg-type]


def _can_be_ids(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()


def _works_in_place(name: str) -> bool:
    return (
        name == "__setitem__"
        or (name.startswith("__i") and name in IN_PLACE)
        or (name.endswith("_") and not name.endswith("__"))
    )
