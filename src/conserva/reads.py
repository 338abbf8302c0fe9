"""Which memory of others a computation reads: a recording of it reads there again, whatever lies there by then.

Weights are such memory, and so are tables that a library keeps for the last few sizes it met, and forgets one day.
Whoever writes there counts its calls, say: a replay too many would be seen.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from .cuda_graph import Compute

TORCHS_OWN = ("aten", "prims")


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What is read on a device, in computations that are followed, from memory that was not made there."""

    supports_higher_order_operators = True

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._made: set[int] = set()
        self._others: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._places: dict[int, int] = {}
        self._sees_all, self._writes = True, False

    def followed(self, compute: Compute) -> Compute:
        """Return a computation that is followed where it is run; its inputs are its own."""

        def run(inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
            self._made |= {one._cdata for x in inputs.values() for one in self._storages(x)}
            with self:
                return compute(inputs)

        return run

    def watch(self, gone: Callable[[], object]) -> bool:
        """Return whether all that was read is known, there still, and only read; from now on say when one is gone.

        For as long as this object lives. In which thread, and when, nobody knows: `gone` waits for nothing.
        """
        alive = {name: other() for name, other in self._others.items()}
        there = {name: one for name, one in alive.items() if one is not None}
        self._others = {name: weakref.ref(one, lambda _: gone()) for name, one in there.items()}
        self._places = {name: one.data_ptr() for name, one in there.items()}
        return self._sees_all and not self._writes and len(there) == len(alive)

    def are_in_place(self) -> bool:
        """Return whether all that is watched lies where it lay: memory can be taken from under a tensor that stays."""
        there = ((other(), self._places[name]) for name, other in self._others.items())
        return all(one is not None and one.data_ptr() == place for one, place in there)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What operations of others read, in a Python of their own, is not seen.
        self._sees_all &= getattr(function, "namespace", None) in TORCHS_OWN
        written = _written_to(function, args, kwargs or {})
        self._writes |= any(one._cdata not in self._made for one in self._all_storages(written))
        is_made_here = function is torch.ops.aten.lift_fresh.default  # by `torch.tensor`, from numbers of Python's
        for one in self._all_storages(() if is_made_here else (args, kwargs)):
            if one._cdata not in self._made:
                self._others.setdefault(one._cdata, weakref.ref(one))
        found = function(*args, **(kwargs or {}))
        self._made |= {one._cdata for one in self._all_storages(found)}
        return found

    def _all_storages(self, values: Any) -> Iterator[torch.UntypedStorage]:
        for x in tree_leaves(values):
            if isinstance(x, Tensor):
                yield from self._storages(x)

    def _storages(self, x: Tensor) -> Iterator[torch.UntypedStorage]:
        """Yield where a tensor lies on the device; those inside, where it wraps others."""
        if x.device != self._device:
            return
        inside: Any = x
        if is_traceable_wrapper_subclass(inside):
            for name in inside.__tensor_flatten__()[0]:
                yield from self._storages(getattr(inside, name))
        else:
            # A sparse one has several places, and no name for them.
            with contextlib.suppress(NotImplementedError, RuntimeError):
                yield x.untyped_storage()


def _written_to(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return which arguments an operation changes, as its schema has it."""
    schema = getattr(function, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    given = {one.name: value for one, value in zip(schema.arguments, args, strict=False)} | dict(kwargs)
    changed = [one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    return [given[name] for name in changed if name in given]
