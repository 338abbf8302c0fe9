"""What a model is at the moment, as something to compare: where its weights lie, and all that its modules hold else.

What Python objects are like inside is followed some way down; what goes on in a function's own memory is not seen.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

DEEPEST = 5
"""How far into lists, dicts and objects a module's settings are followed."""
LONGEST = 1000
"""Of lists and dicts that are longer, only the length is put down."""
LARGEST_ARRAY = 2**16
"""Up to how many bytes the numbers of an array are put down; a larger one is another every time."""
FEW = 16
"""Up to how many elements those of a tensor on the host are put down: a model may read them itself."""

_PLAIN = frozenset({
    int, str, float, bool, bytes, complex, range, type(None), type(Ellipsis), torch.dtype, torch.device, torch.Size,
    torch.memory_format, torch.layout,
})  # fmt: skip
_SEQUENCES = (list, tuple, set, frozenset, deque)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NOT_ASKED = frozenset({
    "_modules", "_parameters", "_buffers", "_non_persistent_buffers_set", "_is_full_backward_hook", *HOOKS,
    "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
})  # fmt: skip
"""What modules hold that a forward pass does not look at, or that is looked at by itself."""


class State:
    """What a walk over a model finds: its weights, its settings, its hooks."""

    def __init__(self, model: nn.Module) -> None:
        self.weights: list[Hashable] = []
        self.settings: list[Any] = []
        self.parts: set[tuple[torch.device, torch.dtype]] = set()
        """Where the parameters lie, and of which type they are."""
        self.hooks: list[Any] = []
        self._waiting, self._modules = [model], {model}
        self._objects: set[int] = set()
        while self._waiting:
            self._walk(self._waiting.pop())

    def _walk(self, module: nn.Module) -> None:
        own, settings = vars(module), self.settings
        for kind in HOOKS:
            self.hooks += own[kind].values()
        settings.append(type(module))
        for name, one in own["_parameters"].items():
            settings += (name, one is None)
            if one is not None:
                self.weights += place_of(one)
                self.parts.add((one.device, one.dtype))
        for name, one in own["_buffers"].items():
            settings += (name, one is None)
            if one is not None:
                self._tensor(one)
        for name, child in own["_modules"].items():
            settings.append(name)
            self._part(child)
        for name, value in own.items():
            if type(value) in _PLAIN:  # most are, and a call for each would take longer than all else here
                settings += (name, type(value), value)
            elif name not in _NOT_ASKED:
                settings.append(name)
                self._describe(value, DEEPEST)

    def _part(self, module: nn.Module | None) -> None:
        """Put down which module stands here; it may stand elsewhere too, and is walked over once."""
        self.settings.append(None if module is None else serial_number(module))
        if module is not None and module not in self._modules:
            self._modules.add(module)
            self._waiting.append(module)

    def _tensor(self, x: Tensor) -> None:
        place = place_of(x)
        self.settings += place
        if x.device.type == "cpu" and len(place) > 1:  # what lies on the device is read anew in every replay
            self.settings.append(None if x.is_inference() else x._version)
            if x.numel() <= FEW:
                self.settings.append(tuple(x.detach().flatten().tolist()))

    def _describe(self, value: Any, deep: int) -> None:
        """Put down what a value is: itself, what it holds, where it lies, and which object it is."""
        # Asked of classes, not of objects: some of those answer by themselves, and take their time.
        kind, settings = type(value), self.settings
        if kind in _PLAIN:
            settings += (kind, value)
        elif id(value) in self._objects:
            settings.append(serial_number(value) if is_told_of(value) else kind)
        elif issubclass(kind, Tensor):
            self._tensor(value)
        elif issubclass(kind, nn.Module):
            self._part(value)
        elif issubclass(kind, (int, str, float)):  # classes of numbers and names
            settings += (kind, value)
        elif issubclass(kind, np.generic):
            settings += (kind, value.item())
        elif issubclass(kind, np.ndarray):
            is_small = value.nbytes <= LARGEST_ARRAY and value.dtype != object
            settings += (kind, value.dtype.str, value.shape, value.tobytes() if is_small else next(_numbers))
        elif issubclass(kind, (Mapping, *_SEQUENCES)):
            settings += (kind, len(value))
            if deep and len(value) <= LONGEST:
                for one in value.items() if issubclass(kind, Mapping) else value:
                    self._describe(one, deep - 1)
        elif issubclass(kind, (type, *_FUNCTIONS)):
            settings.append(serial_number(value))
        else:
            held = dict(_inside(value)) if deep else {}
            # One that tells nobody of its end is what it holds.
            settings.append(kind if held and not is_told_of(value) else serial_number(value))
            self._objects.add(id(value))
            for name, one in held.items():
                settings.append(name)
                self._describe(one, deep - 1)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, by name."""
    held = getattr(value, "__dict__", None)
    yield from held.items() if isinstance(held, dict) else ()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def place_of(x: Tensor) -> tuple[Hashable, ...]:
    """Return where a tensor lies; which object it is, where it has no place, as sparse ones and those of others."""
    try:
        address = x.data_ptr()
    except RuntimeError:
        address = 0
    if not address and x.numel():
        return (serial_number(x),)
    return (address, x.dtype, x.shape, x.stride())


def is_told_of(x: Any) -> bool:
    """Return whether one hears of an object's end."""
    return type(x).__weakrefoffset__ != 0


def serial_number(x: Any) -> int:
    """Return a number that no other object ever had. One of whose end one does not hear gets another every time."""
    known = _serials.get(id(x))
    if known is not None and known[0]() is x:
        return known[1]
    number, at = next(_numbers), id(x)
    if is_told_of(x):
        _serials[at] = (weakref.ref(x, lambda _: _serials.pop(at, None)), number)
    return number


_numbers = itertools.count()
_serials: dict[int, tuple[weakref.ref[Any], int]] = {}
