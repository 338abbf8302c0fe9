"""Attributes that rules set on tensors, and their removal.

A model, or a user's hook, may keep a tensor after an explanation. Such a tensor must not keep the attributes of the
explanation, nor the tensors that these refer to.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor


class TensorAttributes:
    """Sets attributes of tensors, and removes all of them later."""

    def __init__(self) -> None:
        self._set: list[tuple[weakref.ref[Tensor], str]] = []

    def set(self, x: Tensor, name: str, value: Any) -> None:
        """Set an attribute of a tensor."""
        x.__dict__[name] = value
        self._set.append((weakref.ref(x), name))

    def remove_all(self) -> None:
        """Remove the attributes from all tensors that still exist."""
        attributes, self._set = self._set, []
        for reference, name in attributes:
            x = reference()
            if x is not None:
                x.__dict__.pop(name, None)


@contextlib.contextmanager
def attributes_removed() -> Iterator[None]:
    """Remove at the end of the block all attributes that contexts created inside it have set on tensors."""
    outer = current_attributes()
    _here.attributes = own = TensorAttributes()
    try:
        yield
    finally:
        _here.attributes = outer
        own.remove_all()


def current_attributes() -> TensorAttributes | None:
    """Return the attributes that the enclosing block of this thread will remove; None outside of such a block."""
    return getattr(_here, "attributes", None)


_here = threading.local()
