"""Temporary hooks on a model's modules, for the calls of the current thread only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from torch import nn

from .interrupts import DeferredSignals

Hooks: TypeAlias = Iterable[tuple[nn.Module, Callable[..., Any]]]


@contextlib.contextmanager
def hooked(
    after: Hooks = (), before: Hooks = (), *, with_kwargs: bool = False, prepend: bool = False
) -> Iterator[None]:
    """Install forward hooks and pre-hooks inside the block; they ignore calls that other threads make.

    Parameters
    ----------
    after
        Pairs of a module and its forward hook.
    before
        Pairs of a module and its forward pre-hook.
    with_kwargs, prepend
        As in `torch.nn.Module.register_forward_hook`.
    """
    thread = threading.get_ident()

    def guarded(hook: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: hook(*given) if threading.get_ident() == thread else None

    with DeferredSignals():
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
