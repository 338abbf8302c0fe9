"""A model as it was: after an answer, after an error, after an interrupt.

Transformers installs hooks of its own the first time that a model is asked for its hidden states, or for its attention
maps, and leaves them there; a model that has them cannot be pickled. They are removed again, unless they were there
before or another thread is asking the same model just now.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from .census import modules_of
from .interrupts import Waiting
from .operations.notes import erased

_CAPTURING = "transformers.utils.output_capturing"
_MARK = "_output_capturing_hooks_installed"
"""The attribute by which transformers knows a model that has its hooks."""


@contextlib.contextmanager
def untouched(model: nn.Module, modules: Mapping[str, nn.Module] | None = None) -> Iterator[None]:
    """Leave nothing behind on a model, or on the tensors that it keeps; an interrupt waits for a torch call to end.

    `modules` are the model's modules by name, if the caller has them.
    """
    with Waiting(), erased(), _without_capturing_hooks(model, modules):
        yield


@dataclass
class _Asked:
    """A model without transformers' hooks that is being asked here."""

    first: int
    """The number from which on hooks are new."""
    times: int = 0


_asked: dict[nn.Module, _Asked] = {}
_lock = threading.Lock()
_here = threading.local()


@contextlib.contextmanager
def _without_capturing_hooks(model: nn.Module, modules: Mapping[str, nn.Module] | None) -> Iterator[None]:
    capturing, outer = sys.modules.get(_CAPTURING), getattr(_here, "model", None)
    if capturing is None or model is outer:
        yield
        return
    with _lock, capturing._hook_installation_lock:  # another thread may have installed some of them, and not the mark
        models = _models(modules_of(model) if modules is None else modules)
        mine = [one for one in models if one in _asked or _MARK not in one.__dict__]
        for one in mine:
            _asked.setdefault(one, _Asked(RemovableHandle.next_id)).times += 1
    _here.model = model
    try:
        yield
    finally:
        _here.model = outer
        with _lock:
            _leave(mine, capturing)


def _models(modules: Mapping[str, nn.Module]) -> list[nn.Module]:
    """Return the models of transformers among a model's modules."""
    kind: Any = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", ())
    return [one for one in modules.values() if isinstance(one, kind)]


def _leave(mine: Sequence[nn.Module], capturing: Any) -> None:
    """Remove the hooks of models that are no longer being explained."""
    done: dict[nn.Module, int] = {}
    for one in mine:
        asked = _asked[one]
        asked.times -= 1
        if not asked.times:
            del _asked[one]
            if _MARK in one.__dict__:
                done[one] = asked.first
    if not done:
        return
    with capturing._hook_installation_lock:
        for one in done:  # a thread that asks from now on waits for the lock, and installs them again
            del one.__dict__[_MARK]
        if _is_asked_elsewhere(done, capturing):
            for one in done:
                one.__dict__[_MARK] = True
        else:
            for one, first in done.items():
                _remove(one, first)


def _is_asked_elsewhere(models: dict[nn.Module, int], capturing: Any) -> bool:
    """Tell whether another thread is in a call of these models that relies on the hooks."""
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
        if child is not None and child not in _asked:
            _remove(child, first)


def _captures(hook: Any) -> bool:
    return getattr(hook, "__module__", None) == _CAPTURING
