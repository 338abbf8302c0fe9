"""What tensors carry while a rule set is at work, as attributes of theirs, and how they lose it again.

Models keep tensors: on themselves, or wherever hooks of the user's put them. Such a tensor must neither tell of an
explanation afterwards nor hold the tensors that its notes speak of.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor


class Notes:
    """The notes that were put on tensors, each by its attribute's name."""

    def __init__(self) -> None:
        self._put: list[tuple[weakref.ref[Tensor], str]] = []

    def put(self, x: Tensor, name: str, value: Any) -> None:
        """Let a tensor carry a note."""
        x.__dict__[name] = value
        self._put.append((weakref.ref(x), name))

    def erase(self) -> None:
        """Take all notes off the tensors that are still there."""
        put, self._put = self._put, []
        for reference, name in put:
            x = reference()
            if x is not None:
                x.__dict__.pop(name, None)


@contextlib.contextmanager
def erased() -> Iterator[None]:
    """Erase at the end of the block all notes that contexts made inside put on tensors."""
    outer = notes_here()
    _here.notes = own = Notes()
    try:
        yield
    finally:
        _here.notes = outer
        own.erase()


def notes_here() -> Notes | None:
    """Return the notes that are erased at the end of the block that this thread is in, if it is in one."""
    return getattr(_here, "notes", None)


_here = threading.local()
