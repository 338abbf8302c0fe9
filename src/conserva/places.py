"""Where memory of others lies, who may let go of it: a recording reads there, whatever lies there by then."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


class Place(NamedTuple):
    """Where memory lay when someone last looked."""

    memory: weakref.ref[torch.UntypedStorage]
    address: int

    @classmethod
    def of(cls, memory: torch.UntypedStorage) -> Place:
        return cls(weakref.ref(memory), _address(memory))

    def watched(self, gone: Callable[[], object]) -> Place | None:
        """Return the same, which says when the memory is gone; None where it is gone already."""
        there = self.memory()
        return None if there is None else Place(weakref.ref(there, lambda _: gone()), self.address)

    def is_as_it_was(self) -> bool:
        """Tell whether the memory is still there: it can be taken from under a tensor that stays."""
        there = self.memory()
        return there is not None and _address(there) == self.address


def _address(memory: torch.UntypedStorage) -> int:
    try:
        return memory.data_ptr()
    except RuntimeError:  # it was never taken, as that of a tensor which wraps others
        return 0


def memory_of(x: Tensor) -> Iterator[torch.UntypedStorage]:
    """Yield where a tensor lies; where those inside do, if it wraps others."""
    inside: Any = x
    if is_traceable_wrapper_subclass(inside):
        for name in inside.__tensor_flatten__()[0]:
            yield from memory_of(getattr(inside, name))
    else:
        # A sparse one has several places, and no name for them.
        with contextlib.suppress(RuntimeError):
            yield x.untyped_storage()
