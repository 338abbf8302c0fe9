"""Restoring a model after an explanation, an error or an interrupt.

Transformers installs hooks the first time that a model is called with `output_hidden_states` or `output_attentions`,
and leaves them installed; a model that has them cannot be pickled. They are removed again, unless they were installed
before or another thread is running such a call of the same model.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from .interrupts import DeferredSignals
from .module_tree import Modules
from .operations.tensor_attributes import attributes_removed

_CAPTURING = "transformers.utils.output_capturing"
_MARK = "_output_capturing_hooks_installed"
"""The attribute by which transformers marks a model that has its hooks."""


@contextlib.contextmanager
def untouched(model: nn.Module, modules: Modules | None = None) -> Iterator[None]:
    """Remove all hooks and attributes that were set inside the block from a model and its tensors; defer signals.

    Parameters
    ----------
    model
        The model.
    modules
        Its modules by name, if the caller has them.
    """
    with DeferredSignals(), attributes_removed(), _without_capturing_hooks(model, modules):
        yield


@dataclass
class _Use:
    """Counts the explanations that are using a model on which transformers had installed no hooks before."""

    first: int
    """The id of the first hook that was installed since."""
    times: int = 0


_in_use: dict[nn.Module, _Use] = {}
_lock = threading.Lock()
_here = threading.local()


@contextlib.contextmanager
def _without_capturing_hooks(model: nn.Module, modules: Modules | None) -> Iterator[None]:
    capturing, outer = sys.modules.get(_CAPTURING), getattr(_here, "model", None)
    if capturing is None or model is outer:
        yield
        return
    with (
        _lock,
        capturing._hook_installation_lock,
    ):  # another thread may be between installing hooks and setting the mark
        models = _models(Modules.of(model) if modules is None else modules)
        mine = [each for each in models if each in _in_use or _MARK not in each.__dict__]
        for each in mine:
            _in_use.setdefault(each, _Use(RemovableHandle.next_id)).times += 1
    _here.model = model
    try:
        yield
    finally:
        _here.model = outer
        with _lock:
            _leave(mine, capturing)


def _models(modules: Modules) -> list[nn.Module]:
    """Return the modules that are a `PreTrainedModel` of transformers."""
    kind: Any = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", ())
    return modules.of_types((kind,)) if isinstance(kind, type) else []


def _leave(mine: Sequence[nn.Module], capturing: Any) -> None:
    """Remove the hooks of models that are no longer being explained."""
    done: dict[nn.Module, int] = {}
    for model in mine:
        use = _in_use[model]
        use.times -= 1
        if not use.times:
            del _in_use[model]
            if _MARK in model.__dict__:
                done[model] = use.first
    if not done:
        return
    with capturing._hook_installation_lock:
        for model in done:  # a call in another thread now waits for the lock, and installs its hooks again
            del model.__dict__[_MARK]
        if _is_used_elsewhere(done, capturing):
            for model in done:
                model.__dict__[_MARK] = True
        else:
            for model, first in done.items():
                _remove(model, first)


def _is_used_elsewhere(models: dict[nn.Module, int], capturing: Any) -> bool:
    """Return whether another thread is in a call of these models that needs the hooks."""
    for thread, top in sys._current_frames().items():
        frame = None if thread == threading.get_ident() else top
        while frame is not None:
            seen = frame.f_locals if frame.f_code.co_filename == capturing.__file__ else {}
            if seen.get("collected_outputs") and seen.get("self") in models:
                return True
            frame = frame.f_back
    return False


def _remove(module: nn.Module, first: int) -> None:
    new = [number for number, hook in module._forward_hooks.items() if number >= first and _captures(hook)]
    for number in new:
        module._forward_hooks.pop(number, None)
    for child in module._modules.values():
        if child is not None and child not in _in_use:
            _remove(child, first)


def _captures(hook: Any) -> bool:
    return getattr(hook, "__module__", None) == _CAPTURING
