"""JSON that says what it is: results are written with a schema, and read again only if they are whole and consistent.

What a file must hold is read from the type hints of the result's dataclass. What types cannot say, as lists of one
length, a dataclass says in `_flaws`, which yields a sentence for each thing that is wrong, beginning with a field.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar

from .._util.text import to_json
from ..errors import Error

Result = TypeVar("Result")
Reader = Callable[[Any], Any]

LARGEST = 1e100
"""The largest number in a file, in size: what is computed from several of them is still finite."""

DEEPEST = 40
"""How many lists and objects may lie within each other where any JSON is allowed."""

ROUNDING = 1e-4
"""By how much, of their sizes, numbers that add up may differ from their sum: some files keep five digits."""

SLACK = 1e-6
"""By how much a number may lie beyond a bound: a probability of 1.0000001 is 1."""

_SHOWN = 60
_NAME = re.compile(r"\w[\w.-]{0,99}")
_WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")


@dataclasses.dataclass(frozen=True)
class Within:
    """The smallest and the largest value of a number, as an annotation of its type."""

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        return f"at least {self.low:g}" if self.high == math.inf else f"between {self.low:g} and {self.high:g}"


Count = Annotated[int, Within(0)]
Share = Annotated[float, Within(0, 1)]
"""A probability, or a part of a whole."""

Correlation = Annotated[float, Within(-1, 1)]


class _Wrong(Exception):  # noqa: N818 - never seen outside: it becomes an Error
    """What is wrong; each level that it passes adds where."""

    def at(self, place: str) -> _Wrong:
        return _Wrong(f"{place}{self}")


def written(result: Any, schema: str, indent: int | None = 2) -> str:
    """Return a result, or its fields, as JSON with its schema; numbers that are not finite are refused."""
    found = {"schema": schema, **(result if isinstance(result, dict) else dataclasses.asdict(result))}
    try:
        return to_json(found, indent=indent)
    except ValueError:
        try:
            _any(json.loads(json.dumps(found)))
        except _Wrong as wrong:
            raise Error(
                f"{str(wrong).lstrip('.')}. JSON has no such number: look for nan and inf in the model's output."
            ) from None
        raise


def read(
    kind: type[Result], text: str, schema: str, what: str, given: str = "text", hint: str = "Save it anew."
) -> Result:
    """Return the result that was written as JSON.

    Parameters
    ----------
    kind
        Its dataclass.
    text
        The JSON.
    schema
        What its field "schema" must be.
    what
        What the result is called, as "explanation".
    given
        What the user gave, which an error repeats.
    hint
        What to do about a text that is refused.
    """
    try:
        found: Result = _reader(typing.cast(Any, kind))(parsed(text, schema))
        return found
    except _Wrong as wrong:
        raise Error(f"{given} is damaged, or no {what}: {str(wrong).lstrip('.')}. {hint}") from None


def parsed(text: str, schema: str) -> dict[str, Any]:
    """Return the fields of a result, without its schema."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise _Wrong(f"it is not JSON, or only a part of it ({error})") from None
    except ValueError:
        raise _Wrong("it holds a number of thousands of digits") from None
    except RecursionError:
        raise _Wrong("its lists and objects are nested too deep") from None
    if not isinstance(found, dict):
        raise _Wrong(f"it is {_said(found)}, not an object")
    if "schema" not in found:
        raise _Wrong(f"it has no schema, which must be {schema!r}")
    if (other := found.pop("schema")) != schema:
        newer = isinstance(other, str) and other.rpartition("/")[0] == schema.rpartition("/")[0]
        hint = "; it was written by another version of conserva" if newer else ""
        raise _Wrong(f"its schema is {_said(other)}, not {schema!r}{hint}")
    return found


# What types say


@cache
def _reader(hint: Any) -> Reader:
    """Return what turns a value of JSON into one of a type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return _any
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is Annotated:
        return _within(_reader(inner[0]), inner[1])
    if origin in (typing.Union, types.UnionType):
        return _or_null(inner)
    if origin is tuple:
        return _list(inner[0]) if inner[1:] == (...,) else _entries(inner)
    if origin is Mapping:
        return _mapping(*inner)
    if dataclasses.is_dataclass(origin or hint):
        return _of_dataclass(origin or hint, inner)
    raise TypeError(f"{hint} is not a type that can be read from JSON.")


def _str(value: Any) -> str:
    if type(value) is not str:
        raise _Wrong(f" is {_said(value)}, not a string")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _Wrong(f" is {_said(value)}, not true or false")
    return value


def _int(value: Any) -> int:
    if type(value) is not int or abs(value) > LARGEST:
        raise _Wrong(f" is {_said(value)}, not a whole number{_limit(value)}")
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= LARGEST:  # of nan neither is true
        raise _Wrong(f" is {_said(value)}, not a number{_limit(value)}")
    return float(value)


def _any(value: Any, deep: int = 0) -> Any:
    """Return any JSON, if it is finite and not nested too deep."""
    if deep > DEEPEST:
        raise _Wrong(f" is nested more than {DEEPEST} deep")
    if isinstance(value, dict):
        _each(value.items(), _key, lambda one: _any(one, deep + 1))
    elif isinstance(value, list):
        _each(enumerate(value), _place, lambda one: _any(one, deep + 1))
    elif type(value) in (int, float):
        _float(value)
    return value


_PLAIN: dict[Any, Reader] = {str: _str, bool: _bool, int: _int, float: _float}


def _within(reader: Reader, bounds: Within) -> Reader:
    def read_it(value: Any) -> Any:
        found = reader(value)
        if not bounds.low - SLACK <= found <= bounds.high + SLACK:
            raise _Wrong(f" is {_said(found)}, not {bounds}")
        return found

    return read_it


def _or_null(choices: Sequence[Any]) -> Reader:
    (hint,) = (one for one in choices if one is not types.NoneType)
    reader = _reader(hint)
    return lambda value: None if value is None else reader(value)


def _list(hint: Any) -> Reader:
    reader = _reader(hint)
    return lambda value: tuple(_each(enumerate(_a(list, value)), _place, reader))


def _entries(hints: Sequence[Any]) -> Reader:
    """Return what reads a list of so many entries, each of its own type."""
    readers = [_reader(hint) for hint in hints]

    def read_it(value: Any) -> Any:
        if len(_a(list, value)) != len(readers):
            raise _Wrong(f" has {len(value)} entries, not {len(readers)}")
        pairs = zip(readers, value, strict=True)
        return tuple(_each(enumerate(pairs), _place, lambda pair: pair[0](pair[1])))

    return read_it


def _mapping(key: Any, hint: Any) -> Reader:
    reader = _reader(hint)

    def read_it(value: Any) -> Any:
        for name in _a(dict, value):
            if key is int and not _WHOLE.fullmatch(name):
                raise _Wrong(f" has {_said(name)} in the place of a whole number")
        return {key(name): one for name, one in zip(value, _each(value.items(), _key, reader), strict=True)}

    return read_it


def _of_dataclass(kind: Any, arguments: Sequence[Any]) -> Reader:
    """Return what reads an object as a dataclass, which may be generic, and asks it for what is wrong."""
    known = {one.name: one for one in dataclasses.fields(kind) if one.init}
    hints = typing.get_type_hints(kind, include_extras=True)
    chosen = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=True))
    readers = {name: _reader(chosen.get(hints[name], hints[name])) for name in known}
    required = [name for name, one in known.items() if one.default is one.default_factory is dataclasses.MISSING]

    def read_it(value: Any) -> Any:
        for name in _a(dict, value):
            if name not in known:
                raise _Wrong(f"{_key(name)} is not a field that conserva knows")
        for name in required:
            if name not in value:
                raise _Wrong(f".{name} is missing")
        made = kind(**dict(_named(value, readers)))
        for flaw in made._flaws() if hasattr(made, "_flaws") else ():
            raise _Wrong(f".{flaw}")
        return made

    return read_it


def _named(value: Mapping[str, Any], readers: Mapping[str, Reader]) -> Iterator[tuple[str, Any]]:
    for name, one in value.items():
        try:
            yield name, readers[name](one)
        except _Wrong as wrong:
            raise wrong.at(f".{name}") from None


def _each(pairs: Any, place: Callable[[Any], str], reader: Reader) -> list[Any]:
    """Read each value; what is wrong is said with its place."""
    found = []
    for name, one in pairs:
        try:
            found.append(reader(one))
        except _Wrong as wrong:
            raise wrong.at(place(name)) from None
    return found


def _a(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise _Wrong(f" is {_said(value)}, not {'a list' if kind is list else 'an object'}")
    return value


# Words


def _place(index: int) -> str:
    return f"[{index}]"


def _key(name: str) -> str:
    return f".{name}" if name.isidentifier() and len(name) <= _SHOWN else f"[{_said(name)}]"


def _said(value: Any) -> str:
    """Return a value of JSON in a few words."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    text = str(value) if is_number else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _limit(value: Any) -> str:
    """Return what else is asked of a number, where that is what is wrong with it."""
    if type(value) not in (int, float) or abs(value) <= LARGEST:
        return ""
    return f" of at most {LARGEST:g} in size" if abs(value) < math.inf else " that is finite"


# What types cannot say


def uneven(result: Any, first: str, *others: str) -> Iterator[str]:
    """Yield which lists of a result are not as long as the first one."""
    long = len(getattr(result, first))
    for name in others:
        if (other := len(getattr(result, name))) != long:
            yield f"{name} has {other} entries, and {first} has {long}"


def unsummed(what: str, parts: Sequence[float], total: float, called: str = "output") -> Iterator[str]:
    """Yield that parts do not add up to their total, but for rounding."""
    found = math.fsum(parts)
    if abs(found - total) > ROUNDING * (abs(total) + math.fsum(map(abs, parts))):
        yield f"{what} does not add up: its entries make {found:.6g}, and {called} is {total:.6g}"


def unknown(what: str, name: Any, known: Sequence[str]) -> Iterator[str]:
    """Yield that a name is none of those that there are."""
    if name not in known:
        yield f"{what} is {_said(name)}, which is none of {', '.join(map(_said, known[:10]))}"


def repeated(what: str, names: Sequence[str | int]) -> Iterator[str]:
    """Yield that a name stands in a list twice."""
    seen: set[str | int] = set()
    for name in names:
        if name in seen:
            yield f"{what} has {_said(name)} twice"
        seen.add(name)


def unlike(
    what: str, found: Mapping[str, Any], hints: Mapping[str, Any], optional: Sequence[str] = ()
) -> Iterator[str]:
    """Yield which settings of a mapping are missing, or of another type."""
    for name, hint in hints.items():
        if name not in found:
            if name not in optional:
                yield f"{what}.{name} is missing"
            continue
        try:
            _reader(hint)(found[name])
        except _Wrong as wrong:
            yield f"{what}.{name}{wrong}"


def unnamed(what: str, name: str) -> Iterator[str]:
    """Yield that a name cannot be a part of a file's name."""
    if not _NAME.fullmatch(name):
        yield f"{what} is {_said(name)}, not a name of letters, digits, '.', '-' and '_'"
