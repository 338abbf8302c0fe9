"""What the functions of a script or a notebook look at by global names: there, unlike in a module, these change."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

SCRIPT = "__main__"


def is_of_a_script(value: Any) -> bool:
    """Return whether a function or a class is one."""
    return getattr(value, "__module__", None) == SCRIPT


def function_of(value: Any) -> FunctionType | None:
    """Return the function behind an entry of a class, if that is what it is."""
    if type(value) is FunctionType:
        return value
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    return value if type(value) is FunctionType else None


def globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function looks at, by name."""
    found = function.__globals__
    return ((name, found[name]) for name in _looked_for(function.__code__)[0] if name in found)


def reached(kind: type) -> Iterator[FunctionType]:
    """Yield what a class of a script runs: all its functions; those of a module, as far as its forward names them."""
    own: dict[str, list[FunctionType]] = {}
    for one in filter(is_of_a_script, kind.__mro__):
        for name, value in vars(one).items():
            if (function := function_of(value)) is not None:
                own.setdefault(name, []).append(function)
    waiting = ["forward"] if issubclass(kind, nn.Module) else list(own)
    while waiting:
        for function in own.pop(waiting.pop(), ()):
            yield function
            waiting += _looked_for(function.__code__)[1]


@functools.lru_cache(4096)
def _looked_for(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the global names that code looks for, and all other names, as those of methods."""
    globals_, others = set(), set(code.co_names)
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            globals_.add(one.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more = _looked_for(inner)
            globals_, others = globals_ | more[0], others | more[1]
    return frozenset(globals_), frozenset(others)
