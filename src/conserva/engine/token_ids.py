"""Token ids on their way through a model: for each element, the element of the input that it is.

The integer arguments of a call are handed to the model as `Ids`, a tensor subclass that carries a shadow: a tensor of
the same shape with the number of the input's element that each of its own elements came from, or -1 for a constant.
Torch calls `Ids.__torch_function__` wherever one is among the arguments; calls that move elements are made on the
shadow as well. So ids that a model shifts, flattens, pads or repeats are known when they are looked up in a table.
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
"""What stands in a shadow for an element that is not one of an input's."""


@dataclass(eq=False)
class Origin:
    """What is known of all elements that share a storage."""

    inputs: Inputs
    names: set[str]
    """The inputs that they may come from."""
    mixed: bool = False
    """Whether there may be constants among them."""
    changed: str = ""
    """The call that made other numbers of them: which element each came from is not known any more."""

    def joined(self, others: Iterable[Origin], mixed: bool) -> Origin:
        """Return what is known of elements from several tensors."""
        every = [self, *others]
        changed = next((one.changed for one in every if one.changed), "")
        return Origin(self.inputs, set().union(*(one.names for one in every)), mixed, changed)


class Ids(Tensor):
    """Integers that come from a model's inputs."""

    conserva_shadow: Tensor | None
    conserva_origin: Origin
    conserva_one_hot: Ids
    """The ids that these are one-hot vectors of, which may be floating-point numbers."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return follow(func, args, kwargs or {})


def made(x: Tensor, shadow: Tensor | None, origin: Origin) -> Ids:
    """Return the same integers as `Ids`."""
    with torch._C.DisableTorchFunction():
        ids = x.as_subclass(Ids)
    ids.conserva_shadow, ids.conserva_origin = shadow, origin
    origin.inputs.made.append(weakref.ref(ids))
    return ids


def plain(x: Any) -> Any:
    """Return an argument of a call with ordinary tensors in place of `Ids`."""
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
    return [one for part in x for one in ids_in(part)] if type(x) in (list, tuple) else []


@dataclass(eq=False)
class Inputs:
    """The integer tensors that a model is called with, their elements numbered one after the other."""

    given: Mapping[str, Tensor]
    made: list[weakref.ref[Ids]] = field(default_factory=list)
    _shadows: dict[str, Tensor] = field(default_factory=dict)

    def opened(self) -> dict[str, Tensor]:
        """Return the tensors as `Ids`, where they have a storage of their own: sparse and nested ones have none."""
        plain = {name: x for name, x in self.given.items() if x.layout is torch.strided and not x.is_nested}
        return {name: made(x, None, Origin(self, {name})) for name, x in plain.items()}

    def start(self, name: str) -> int:
        """Return the number of a tensor's first element."""
        before = list(self.given)[: list(self.given).index(name)]
        return sum(self.given[one].numel() for one in before)

    def shadow(self, ids: Ids) -> Tensor:
        """Return the shadow of ids that are known: that of an input as it was given is made when it is asked for."""
        if ids.conserva_shadow is None:
            (name,) = ids.conserva_origin.names
            if name not in self._shadows:
                x = self.given[name]
                with torch._C.DisableTorchFunction():
                    start = self.start(name)
                    numbers = torch.arange(start, start + x.numel(), device=x.device).view(x.shape)
                    # Laid out as the input is: a view of the one is then a view of the other.
                    self._shadows[name] = (
                        numbers if x.is_contiguous() else torch.empty_like(x, dtype=torch.int64).copy_(numbers)
                    )
            ids.conserva_shadow = self._shadows[name]
        return ids.conserva_shadow

    def is_whole(self, ids: Ids) -> bool:
        """Tell whether these are an input's ids in their own order, none left out."""
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
        """Turn every `Ids` that is still held somewhere, by the model or in its output, into an ordinary tensor."""
        for reference in self.made:
            ids = reference()
            if ids is not None:
                ids.__class__ = Tensor  # type: ignore[assignment]
                for name in ("conserva_shadow", "conserva_origin", "conserva_one_hot"):
                    ids.__dict__.pop(name, None)
        self.made.clear()


def follow(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make a call that has `Ids` among its arguments; return what it returns, known as `Ids` where it is."""
    with torch._C.DisableTorchFunction():  # also where a context is at work: this is not a call of the model's
        out = func(*plain(args), **{name: plain(x) for name, x in kwargs.items()})
        name = getattr(func, "__name__", "")
        if _works_in_place(name):
            _write(func, name, args, kwargs)
            return None if out is None else args[0]
        if isinstance(out, Tensor):
            return _known(func, name, args, kwargs, out)
        if isinstance(out, (tuple, list)) and any(isinstance(one, Tensor) for one in out):
            if name in MOVES:
                return type(out)(_moved(func, args, kwargs, out))
            parts = [_changed(name, args, kwargs, one) if isinstance(one, Tensor) else one for one in out]
            return type(out)(parts)  # also torch's own named tuples, of sort and topk
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
    for one in given:
        if out is one or _is_same(out, one):
            return one  # as `contiguous` and `to` do where there is nothing to change
    if any(one.conserva_origin.changed for one in given):
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
    """Return what is known of a copy of ids."""
    return ids.conserva_origin.joined([], ids.conserva_origin.mixed)


def _changed(name: str, args: Any, kwargs: Mapping[str, Any], out: Tensor) -> Tensor:
    if not _can_be_ids(out):
        return out
    first, *rest = (one.conserva_origin for one in ids_in([*args, *kwargs.values()]))
    origin = first.joined(rest, True)
    origin.changed = origin.changed or name.strip("_")
    return made(out, None, origin)


def _moved(func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], outs: Iterable[Any]) -> list[Any]:
    """Return the results of a call that moves the elements of its first argument."""
    source = args[0] if args else next(iter(kwargs.values()))
    if type(source) is not Ids:
        return _mapped(args, kwargs, outs)
    if source.conserva_origin.changed:
        return [_changed("", args, kwargs, out) for out in outs]
    shadow = source.conserva_origin.inputs.shadow(source)
    rest = {name: plain(x) for name, x in kwargs.items() if x is not source}
    if args:
        found = func(shadow, *plain(args[1:]), **rest)
    else:
        found = func(**{name: shadow if x is source else rest[name] for name, x in kwargs.items()})
    shadows = [found] if isinstance(found, Tensor) else list(found)
    results: list[Any] = []
    for out, own in zip(outs, shadows, strict=True):
        shares = out.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
        results.append(made(out, own, source.conserva_origin if shares else _own(source)))
    return results


def _mapped(args: Any, kwargs: Mapping[str, Any], outs: Iterable[Any]) -> list[Any]:
    """Return what a table of integers, indexed by ids, makes of them: other integers for the same elements."""
    found = ids_in([*args, *kwargs.values()])
    results = []
    for out in outs:
        shadow = None
        if len(found) == 1 and not found[0].conserva_origin.changed:
            shadow = _spread(found[0].conserva_origin.inputs.shadow(found[0]), out.shape)
        results.append(_changed("index", args, kwargs, out) if shadow is None else made(out, shadow, _own(found[0])))
    return results


def _spread(shadow: Tensor, shape: torch.Size) -> Tensor | None:
    """Return a shadow for rows: `shape` must begin as the shadow's does."""
    if shape[: shadow.dim()] != shadow.shape:
        return None
    return shadow.view(*shadow.shape, *[1] * (len(shape) - shadow.dim())).expand(shape).contiguous()


def _elementwise(name: str, args: Any, kwargs: Mapping[str, Any], out: Tensor) -> Tensor:
    """Return the result of arithmetic with constants: other numbers for the same elements."""
    given = ids_in([*args, *kwargs.values()])
    first = given[0]
    if any(one is not first for one in given[1:]):
        return _changed(name, args, kwargs, out)
    shadow = first.conserva_origin.inputs.shadow(first).expand(out.shape).clone()
    return made(out, shadow, _own(first))


def _values(x: Any) -> Any:
    """Return the shadow of what a call puts beside ids: constants but for `Ids`."""
    if type(x) is Ids:
        return x.conserva_origin.inputs.shadow(x)
    if isinstance(x, Tensor):
        return torch.full_like(x, CONSTANT, dtype=torch.int64)
    return type(x)(map(_values, x)) if type(x) in (list, tuple) else CONSTANT


def _on_shadows(func: Callable[..., Any], name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Make a call that joins values, on their shadows."""
    places: tuple[int, ...] = (1, 2) if func is torch.where else (0, 2) if name == "where" else JOINS[name]
    if name == "pad":
        mode = kwargs.get("mode", args[2] if len(args) > 2 else "constant")
        value = {"value": CONSTANT} if mode == "constant" else {}
        named = {key: x for key, x in kwargs.items() if key not in ("value", "input")}
        return func(_values(args[0] if args else kwargs["input"]), *args[1:3], **{**named, **value})
    if name == "zero_":
        return args[0].conserva_shadow.fill_(CONSTANT)
    found = [_values(x) if i in places else plain(x) for i, x in enumerate(args)]
    return func(*found, **{key: _values(x) if key in VALUE_NAMES else plain(x) for key, x in kwargs.items()})


def _joined(func: Callable[..., Any], name: str, args: Any, kwargs: Mapping[str, Any], out: Tensor) -> Tensor:
    first, *rest = (one.conserva_origin for one in ids_in([*args, *kwargs.values()]))
    mixed = first.mixed or any(one.mixed for one in rest)
    every: Any = args[0] if args else kwargs.get("tensors")
    if name not in CONCATENATIONS or not all(type(one) is Ids for one in every):
        mixed = True
    return made(out, _on_shadows(func, name, args, kwargs), first.joined(rest, mixed))


def _write(func: Callable[..., Any], name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Keep the shadow of what a call changed in place."""
    target = args[0] if args else kwargs["input"]
    given = ids_in([*args[1:], *kwargs.values()])
    if not _can_be_ids(target):
        return
    if type(target) is not Ids:
        if not given or not _holds_values(name, args, kwargs):
            return
        _adopt(target, given[0].conserva_origin.inputs)
    origin = target.conserva_origin
    known = name in JOINS and not any(one.conserva_origin.changed for one in given) and not origin.changed
    known = known and not kwargs.get("accumulate") and "reduce" not in kwargs and len(args) < 5
    if name in RESHAPED_IN_PLACE and not origin.changed:
        func(origin.inputs.shadow(target), *plain(args[1:]), **kwargs)
    elif known:
        origin.inputs.shadow(target)
        _on_shadows(func, name, args, kwargs)
        origin.names.update(*(one.conserva_origin.names for one in given))
        origin.mixed = True
    elif (name.strip("_") not in ELEMENTWISE and name.strip("_").removeprefix("i") not in ELEMENTWISE) or given:
        origin.names.update(*(one.conserva_origin.names for one in given))
        origin.changed = origin.changed or name.strip("_")


def _holds_values(name: str, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a call writes ids, rather than writing where they say."""
    if name not in JOINS:
        return True
    values = [x for i, x in enumerate(args) if i in JOINS[name]]
    return bool(ids_in([*values, *(x for key, x in kwargs.items() if key in VALUE_NAMES)]))


def _adopt(x: Tensor, inputs: Inputs) -> None:
    """Turn an ordinary tensor into `Ids`, so far of constants; and with a view what it is a view of."""
    base = x if x._base is None else x._base
    origin = getattr(base, "conserva_origin", None) or Origin(inputs, set(), mixed=True)
    shadow = getattr(base, "conserva_shadow", None)
    if shadow is None:
        shadow = torch.full_like(base, CONSTANT, dtype=torch.int64)
    for one in (base,) if base is x else (base, x):
        if type(one) is Ids:
            continue
        one.__class__ = Ids
        start = x.storage_offset() - base.storage_offset()
        own = shadow if one is base else shadow.as_strided(x.shape, x.stride(), start)
        one.conserva_shadow, one.conserva_origin = own, origin  # type: ignore[attr-defined]
        inputs.made.append(weakref.ref(one))  # type: ignore[arg-type]


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
