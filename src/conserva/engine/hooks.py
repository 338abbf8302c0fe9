"""Hooks on a model's modules: for the calls of this thread alone, and gone afterwards."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from torch import nn

from .interrupts import Waiting

Hooks: TypeAlias = Iterable[tuple[nn.Module, Callable[..., Any]]]


@contextlib.contextmanager
def hooked(
    after: Hooks = (), before: Hooks = (), *, with_kwargs: bool = False, prepend: bool = False
) -> Iterator[None]:
    """Run hooks before and after modules; another thread that runs the same model meanwhile does not notice."""
    own = threading.get_ident()

    def guarded(hook: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: hook(*given) if threading.get_ident() == own else None

    with Waiting():
        handles = [module.register_forward_pre_hook(guarded(hook)) for module, hook in before]
        handles += [
            module.register_forward_hook(guarded(hook), with_kwargs=with_kwargs, prepend=prepend)
            for module, hook in after
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
