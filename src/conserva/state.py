"""What a model is at the moment, as something to compare: where its weights lie, and all that its modules hold else.

What objects and functions hold is followed some way down; of what lies deeper, which object it is. Not seen are the
global names of a module, which seldom change, as those of a script or a notebook do; and what a class holds beside
functions and plain values.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import weakref
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .script import function_of, globals_of, is_of_a_script, reached

DEEPEST = 5
"""How far into lists, dicts and objects a module's settings are followed."""
LONGEST = 1000
"""Of lists and dicts that are longer, and hold more than plain values, only which objects these are is put down."""
LARGEST_ARRAY = 2**16
"""Up to how many bytes the numbers of an array are put down; a larger one is another every time."""
FEW = 16
"""Up to how many elements those of a tensor on the host are put down: a model may read them itself."""

_PLAIN = frozenset({
    int, str, float, bool, bytes, complex, range, type(None), type(Ellipsis), torch.dtype, torch.device, torch.Size,
    torch.memory_format, torch.layout,
})  # fmt: skip
_SEQUENCES = (list, tuple, set, frozenset, deque)
_WHOLE = (type, ModuleType, BuiltinFunctionType, logging.Logger)
"""What is put down as it is, whatever it holds."""
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
        self.tensors: list[Tensor] = []
        """Its weights, and all others that it holds."""
        self._waiting, self._modules = [model], {model}
        self._kinds: set[type] = set()
        self._bases: set[type] = set()
        self._objects: dict[int, tuple[int, Any]] = {}
        """How far down each object was followed; and itself, so that no other takes its place meanwhile."""
        while self._waiting:
            self._walk(self._waiting.pop())

    def _walk(self, module: nn.Module) -> None:
        own, settings = vars(module), self.settings
        for kind in HOOKS:
            self.hooks += own[kind].values()
        self._class(type(module))
        for name, one in own["_parameters"].items():
            settings += (name, one is None)
            if one is not None:
                self.weights += place_of(one)
                self.tensors.append(one)
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

    def _class(self, kind: type) -> None:
        """Put down a class, and once what its objects have of it: someone may have put another there."""
        self.settings.append(kind)
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        for one in kind.__mro__:
            if one in self._bases:
                continue
            self._bases.add(one)
            for name, value in vars(one).items():
                if type(value) in _PLAIN:
                    self.settings += (name, type(value), value)
                elif (function := function_of(value)) is not None:
                    self.settings += (name, serial_number(function))
        if is_of_a_script(kind):
            for function in reached(kind):
                self._describe(function, DEEPEST)

    def _part(self, module: nn.Module | None) -> None:
        """Put down which module stands here; it may stand elsewhere too, and is walked over once."""
        self.settings.append(None if module is None else serial_number(module))
        if module is not None and module not in self._modules:
            self._modules.add(module)
            self._waiting.append(module)

    def _tensor(self, x: Tensor) -> None:
        place = place_of(x)
        self.settings += place
        self.tensors.append(x)
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
        elif id(value) in self._objects and self._objects[id(value)][0] >= deep:
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
            self._container(value, deep)
        elif issubclass(kind, type) and is_of_a_script(value):
            self._class(value)
        elif issubclass(kind, _WHOLE):
            settings.append(serial_number(value))
        elif issubclass(kind, weakref.ref):
            there = value()
            settings.append(None if there is None else serial_number(there))
        else:
            self._object(value, deep)

    def _object(self, value: Any, deep: int) -> None:
        """Put down which object it is, and what it holds, unless it lies too deep."""
        kind, is_known = type(value), is_told_of(value)
        if deep < 0:
            self.settings.append(serial_number(value) if is_known else (kind, id(value)))
            return
        self._objects[id(value)] = deep, value
        if is_of_a_script(kind):
            self._class(kind)
        held = list(_inside(value))
        # One that tells nobody of its end is what it holds.
        self.settings.append(kind if held and not is_known else serial_number(value))
        for name, one in held:
            self.settings.append(name)
            self._describe(one, deep - 1)

    def _container(self, value: Any, deep: int) -> None:
        """Put down what a list holds, or a dict, and in which order."""
        self.settings += (type(value), len(value))
        for part in (value.keys(), value.values()) if isinstance(value, Mapping) else (value,):
            kinds = tuple(map(type, part))
            if _PLAIN.issuperset(kinds):  # as fast for the names of a hundred thousand classes
                self.settings += (kinds, tuple(part))
            elif deep < 0 or len(kinds) > LONGEST:
                self.settings += (kinds, tuple(map(id, part)))
            else:
                for one in part:
                    self._describe(one, deep - 1)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, or a function, by name."""
    if isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty one
                yield "cell", cell.cell_contents
        yield from (("defaults", value.__defaults__), ("keywords", value.__kwdefaults__))
        yield from globals_of(value) if is_of_a_script(value) else ()
    elif isinstance(value, MethodType):
        yield from (("function", value.__func__), ("self", value.__self__))
    elif isinstance(value, functools.partial):
        yield from (("function", value.func), ("args", value.args), ("keywords", value.keywords))
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


def life_of(x: Tensor) -> int:
    """Return a number for the memory that a tensor lies in; what is taken later, at the same place, has another."""
    try:
        return serial_number(x.untyped_storage())
    except RuntimeError:  # it lies nowhere, and holds others
        return serial_number(x)


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
