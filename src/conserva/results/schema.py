"""Serialise results as JSON with a schema version, and validate them when they are loaded.

The type hints of a result's dataclass define its JSON. What type hints cannot express, such as lists of equal length,
its method `_flaws` checks: it yields a message for each inconsistency, which begins with the name of a field.
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
"""The largest absolute value of a number in a file, so that sums and products of a few numbers stay finite."""

DEEPEST = 40
"""The maximum nesting depth of lists and objects in fields of type Any."""

ROUNDING = 1e-4
"""The relative tolerance of sums: some files store five digits."""

SLACK = 1e-6
"""The absolute tolerance of bounds: a probability of 1.0000001 is accepted."""

_SHOWN = 60
_NAME = re.compile(r"\w[\w.-]{0,99}")
_WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")


@dataclasses.dataclass(frozen=True)
class Within:
    """The bounds of a number, for `typing.Annotated`."""

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        return f"at least {self.low:g}" if self.high == math.inf else f"between {self.low:g} and {self.high:g}"


Count = Annotated[int, Within(0)]
Share = Annotated[float, Within(0, 1)]
"""A probability, or a fraction of a total."""

Correlation = Annotated[float, Within(-1, 1)]


class _Wrong(Exception):  # noqa: N818 - internal: converted to Error
    """A value is invalid. Each enclosing list or object prepends its part of the path to the message."""

    def at(self, key: str) -> _Wrong:
        return _Wrong(f"{key}{self}")


def written(result: Any, schema: str, indent: int | None = 2) -> str:
    """Return a result, or a dictionary of its fields, as JSON with its schema. Raise an error for nan and inf."""
    fields = {"schema": schema, **(result if isinstance(result, dict) else dataclasses.asdict(result))}
    try:
        return to_json(fields, indent=indent)
    except ValueError:
        try:
            _any(json.loads(json.dumps(fields)))
        except _Wrong as wrong:
            raise Error(
                f"{str(wrong).lstrip('.')}. JSON cannot represent nan and inf: look for them in the model's output."
            ) from None
        raise


def read(
    kind: type[Result], text: str, schema: str, what: str, given: str = "text", hint: str = "Save it again."
) -> Result:
    """Load a result from JSON.

    Parameters
    ----------
    kind
        The dataclass of the result.
    text
        The JSON.
    schema
        The required value of its field "schema".
    what
        The name of the result in error messages, such as "explanation".
    given
        The user's argument, as error messages quote it.
    hint
        The last sentence of error messages: what the user can do.
    """
    try:
        result: Result = _reader(typing.cast(Any, kind))(parsed(text, schema))
        return result
    except _Wrong as wrong:
        raise Error(f"{given} is not a valid {what}: {str(wrong).lstrip('.')}. {hint}") from None


def parsed(text: str, schema: str) -> dict[str, Any]:
    """Parse a result's JSON, check its schema, and return the other fields."""
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise _Wrong(f"it is not JSON, or truncated ({error})") from None
    except ValueError:
        raise _Wrong("it has a number with thousands of digits") from None
    except RecursionError:
        raise _Wrong("its lists and objects are nested too deep") from None
    if not isinstance(fields, dict):
        raise _Wrong(f"it is {_described(fields)}, not an object")
    if "schema" not in fields:
        raise _Wrong(f"it has no schema, which must be {schema!r}")
    if (other := fields.pop("schema")) != schema:
        newer = isinstance(other, str) and other.rpartition("/")[0] == schema.rpartition("/")[0]
        hint = "; it was written by another version of conserva" if newer else ""
        raise _Wrong(f"its schema is {_described(other)}, not {schema!r}{hint}")
    return fields


# Readers for each type


@cache
def _reader(hint: Any) -> Reader:
    """Return a function that validates a JSON value and converts it to a type."""
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
    raise TypeError(f"{hint} is not a supported type of a JSON field.")


def _str(value: Any) -> str:
    if type(value) is not str:
        raise _Wrong(f" is {_described(value)}, not a string")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _Wrong(f" is {_described(value)}, not true or false")
    return value


def _int(value: Any) -> int:
    if type(value) is not int or abs(value) > LARGEST:
        raise _Wrong(f" is {_described(value)}, not a whole number{_limit(value)}")
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= LARGEST:  # comparisons with nan are false
        raise _Wrong(f" is {_described(value)}, not a number{_limit(value)}")
    return float(value)


def _any(value: Any, deep: int = 0) -> Any:
    """Return any JSON value whose numbers are finite and which is not nested too deep."""
    if deep > DEEPEST:
        raise _Wrong(f" is nested more than {DEEPEST} deep")
    if isinstance(value, dict):
        _each(value.items(), _key, lambda item: _any(item, deep + 1))
    elif isinstance(value, list):
        _each(enumerate(value), _index, lambda item: _any(item, deep + 1))
    elif type(value) in (int, float):
        _float(value)
    return value


_PLAIN: dict[Any, Reader] = {str: _str, bool: _bool, int: _int, float: _float}


def _within(reader: Reader, bounds: Within) -> Reader:
    def read_it(value: Any) -> Any:
        number = reader(value)
        if not bounds.low - SLACK <= number <= bounds.high + SLACK:
            raise _Wrong(f" is {_described(number)}, not {bounds}")
        return number

    return read_it


def _or_null(choices: Sequence[Any]) -> Reader:
    (hint,) = (choice for choice in choices if choice is not types.NoneType)
    reader = _reader(hint)
    return lambda value: None if value is None else reader(value)


def _list(hint: Any) -> Reader:
    reader = _reader(hint)
    return lambda value: tuple(_each(enumerate(_a(list, value)), _index, reader))


def _entries(hints: Sequence[Any]) -> Reader:
    """Return a reader of lists with a fixed number of entries, each of its own type."""
    readers = [_reader(hint) for hint in hints]

    def read_it(value: Any) -> Any:
        if len(_a(list, value)) != len(readers):
            raise _Wrong(f" has {len(value)} entries, not {len(readers)}")
        pairs = zip(readers, value, strict=True)
        return tuple(_each(enumerate(pairs), _index, lambda pair: pair[0](pair[1])))

    return read_it


def _mapping(key: Any, hint: Any) -> Reader:
    reader = _reader(hint)

    def read_it(value: Any) -> Any:
        for name in _a(dict, value):
            if key is int and not _WHOLE.fullmatch(name):
                raise _Wrong(f" has the key {_described(name)}, not a whole number")
        return {key(name): item for name, item in zip(value, _each(value.items(), _key, reader), strict=True)}

    return read_it


def _of_dataclass(kind: Any, arguments: Sequence[Any]) -> Reader:
    """Return a reader of objects as a dataclass, which may be generic and may have a method `_flaws`."""
    known = {field.name: field for field in dataclasses.fields(kind) if field.init}
    hints = typing.get_type_hints(kind, include_extras=True)
    chosen = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=True))
    readers = {name: _reader(chosen.get(hints[name], hints[name])) for name in known}
    required = [name for name, field in known.items() if field.default is field.default_factory is dataclasses.MISSING]

    def read_it(value: Any) -> Any:
        for name in _a(dict, value):
            if name not in known:
                raise _Wrong(f"{_key(name)} is not a known field")
        for name in required:
            if name not in value:
                raise _Wrong(f".{name} is missing")
        made = kind(**dict(_named(value, readers)))
        for flaw in made._flaws() if hasattr(made, "_flaws") else ():
            raise _Wrong(f".{flaw}")
        return made

    return read_it


def _named(value: Mapping[str, Any], readers: Mapping[str, Reader]) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        try:
            yield name, readers[name](item)
        except _Wrong as wrong:
            raise wrong.at(f".{name}") from None


def _each(pairs: Any, path: Callable[[Any], str], reader: Reader) -> list[Any]:
    """Read the value of each (key, value) pair; `path` formats the key for error messages."""
    values = []
    for key, item in pairs:
        try:
            values.append(reader(item))
        except _Wrong as wrong:
            raise wrong.at(path(key)) from None
    return values


def _a(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise _Wrong(f" is {_described(value)}, not {'a list' if kind is list else 'an object'}")
    return value


# Error messages


def _index(index: int) -> str:
    return f"[{index}]"


def _key(name: str) -> str:
    return f".{name}" if name.isidentifier() and len(name) <= _SHOWN else f"[{_described(name)}]"


def _described(value: Any) -> str:
    """Return a short description of a JSON value."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    text = str(value) if is_number else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _limit(value: Any) -> str:
    """Return the limit that a number exceeds, or nothing if its type is what is wrong."""
    if type(value) not in (int, float) or abs(value) <= LARGEST:
        return ""
    return f" of at most {LARGEST:g} in absolute value" if abs(value) < math.inf else " that is finite"


# Checks for `_flaws`


def uneven(result: Any, first: str, *others: str) -> Iterator[str]:
    """Yield a flaw for each list of a result whose length differs from the first one's."""
    long = len(getattr(result, first))
    for name in others:
        if (other := len(getattr(result, name))) != long:
            yield f"{name} has {other} entries, and {first} has {long}"


def unsummed(what: str, parts: Sequence[float], total: float, called: str = "output") -> Iterator[str]:
    """Yield a flaw if the parts do not sum to their total, up to rounding."""
    summed = math.fsum(parts)
    if abs(summed - total) > ROUNDING * (abs(total) + math.fsum(map(abs, parts))):
        yield f"{what} does not add up: its entries sum to {summed:.6g}, and {called} is {total:.6g}"


def unknown(what: str, name: Any, known: Sequence[str]) -> Iterator[str]:
    """Yield a flaw if a name is not among the known ones."""
    if name not in known:
        yield f"{what} is {_described(name)}, not one of {', '.join(map(_described, known[:10]))}"


def repeated(what: str, names: Sequence[str | int]) -> Iterator[str]:
    """Yield a flaw for each duplicate in a list of names."""
    seen: set[str | int] = set()
    for name in names:
        if name in seen:
            yield f"{what} has {_described(name)} twice"
        seen.add(name)


def unlike(
    what: str, settings: Mapping[str, Any], hints: Mapping[str, Any], optional: Sequence[str] = ()
) -> Iterator[str]:
    """Yield a flaw for each setting that is missing or of the wrong type."""
    for name, hint in hints.items():
        if name not in settings:
            if name not in optional:
                yield f"{what}.{name} is missing"
            continue
        try:
            _reader(hint)(settings[name])
        except _Wrong as wrong:
            yield f"{what}.{name}{wrong}"


def unnamed(what: str, name: str) -> Iterator[str]:
    """Yield a flaw if a name cannot be part of a file name."""
    if not _NAME.fullmatch(name):
        yield f"{what} is {_described(name)}, not a name of letters, digits, '.', '-' and '_'"
