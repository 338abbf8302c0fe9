"""Which memory of others a computation reads: a recording of it reads there again, whatever lies there by then.

Weights are such memory, and so are tables that a library keeps for the last few sizes it met, and forgets one day.
Whoever writes there counts calls, say: a replay too many would show, as it would in random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .cuda_graph import Compute
from .places import Place, memory_of

TORCHS_OWN = ("aten", "prims")


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What is read on a device, in computations that are followed, from memory that was not made there."""

    supports_higher_order_operators = True

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._made: set[int] = set()
        self._others: dict[int, Place] = {}
        self._is_unfit = False
        """Whether it does what cannot be seen, or what a replay too many would show."""

    def followed(self, compute: Compute) -> Compute:
        """Return a computation that is followed where it is run; its inputs are its own."""

        def run(inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
            self._made |= {one._cdata for x in inputs.values() for one in self._all_storages(x)}
            with self:
                return compute(inputs)

        return run

    def watch(self, gone: Callable[[], object]) -> bool:
        """Return whether a replay finds all that was read, and leaves it; from now on say when the first of it is gone.

        For as long as this object lives. In which thread, and when, nobody knows: `gone` waits for nothing.
        """
        watched = {name: place.watched(gone) for name, place in self._others.items()}
        self._others = {name: place for name, place in watched.items() if place is not None}
        return not self._is_unfit and len(self._others) == len(watched) and self.are_in_place()

    def are_in_place(self) -> bool:
        """Return whether all that was read lies where it lay."""
        return all(place.is_as_it_was() for place in self._others.values())

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # What operations of others read, in a Python of their own, is not seen.
        self._is_unfit |= getattr(function, "namespace", None) not in TORCHS_OWN
        is_made_here = function is torch.ops.aten.lift_fresh.default  # by `torch.tensor`, from numbers of Python's
        for one in self._all_storages(() if is_made_here else (args, kwargs)):
            if one._cdata not in self._made and one._cdata not in self._others:
                self._others[one._cdata] = Place.of(one)
        self._is_unfit |= any(
            one._cdata in self._others for one in self._all_storages(_changed(function, args, kwargs))
        )
        found = function(*args, **kwargs)
        made = {one._cdata for one in self._all_storages(found)}
        self._is_unfit |= bool(made) and _draws(function)  # on the device: those of the host are drawn by Python
        self._made |= made
        return found

    def _all_storages(self, values: Any) -> Iterator[torch.UntypedStorage]:
        """Yield the memory of all tensors that lie on the device."""
        for x in tree_leaves(values):
            if isinstance(x, Tensor):
                yield from (one for one in memory_of(x) if one.device == self._device)


def _changed(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments whose numbers an operation changes, as its schema has it: not all of them tell."""
    if function in _NORMS and args[5]:  # in training mode
        return list(args[3:5])
    schema = getattr(function, "_schema", None)
    if schema is None or not schema.is_mutable or torch.Tag.inplace_view in function.tags:
        return []
    given = {one.name: value for one, value in zip(schema.arguments, args, strict=False)} | dict(kwargs)
    changed = [one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    return [given[name] for name in changed if name in given]


def _draws(function: Any) -> bool:
    """Return whether an operation takes random numbers, as attention does not where nothing is dropped."""
    seeded = torch.Tag.nondeterministic_seeded in getattr(function, "tags", ())
    return seeded and "attention" not in str(function)


_NORMS = (torch.ops.aten.native_batch_norm.default, torch.ops.aten.cudnn_batch_norm.default)
