"""Which memory of others a computation reads: a recording of it reads there again, whatever lies there by then.

Weights are such memory, and so are tables that a library keeps for the last few sizes it met, and forgets one day.
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
        self._sees_all = True

    def followed(self, compute: Compute) -> Compute:
        """Return a computation that is followed where it is run; its inputs are its own."""

        def run(inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
            self._made |= {one._cdata for x in inputs.values() for one in self._storages(x)}
            with self:
                return compute(inputs)

        return run

    def watch(self, gone: Callable[[], object]) -> bool:
        """Return whether all that was read is known, and there still; from now on say when the first of it is gone.

        For as long as this object lives. In which thread, and when, nobody knows: `gone` waits for nothing.
        """
        alive = {at: other() for at, other in self._others.items()}
        self._others = {at: weakref.ref(one, lambda _: gone()) for at, one in alive.items() if one is not None}
        return self._sees_all and len(self._others) == len(alive)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What operations of others read, in a Python of their own, is not seen.
        self._sees_all &= getattr(function, "namespace", None) in TORCHS_OWN
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
