"""Escaping of untrusted text, from models, files and users, so that it is safe to display."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

Shown = TypeVar("Shown")

ERROR_LENGTH = 2000
"""The maximum number of characters of an error message."""

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters: C0, DEL, C1
    "\u2028\u2029"  # line and paragraph separators
    "\u202a-\u202e\u2066-\u206f"  # embeddings, overrides and isolates of text direction, deprecated controls
    "\ufeff\ufff9-\ufffb"  # the byte order mark, which decoders swallow, and annotations, which leave the line
    "\ud800-\udfff\ufffe\uffff]"  # lone surrogates and noncharacters, which UTF-8 or XML do not allow
)
"""Characters that affect the text around them. Characters that are only invisible are not included: joiners are part of
words and emoji, and direction marks are part of right-to-left text."""


_SIGNS = {"\n": "↵", "\t": "⇥"}


def printable(text: str, *, keep: str = "", limit: int | None = None) -> str:
    r"""Return text without characters that affect a terminal, an HTML page or an XML parser.

    A line feed becomes "↵" and a tab "⇥". Other such characters become escapes, for example "\x1b" and "\u202e":
    Unicode has symbols for control characters, but few fonts include them.

    Parameters
    ----------
    text
        Text from a model, a file or a user.
    keep
        Control characters that are not replaced, such as "\n".
    limit
        The maximum number of characters; longer text is shortened in the middle.
    """
    if limit is not None and len(text) > limit:
        head = limit * 2 // 3
        text = f"{text[:head]} […] {text[len(text) - (limit - head) :]}"
    if text.isprintable():  # fast path, for almost all text
        return text
    return _UNSAFE.sub(lambda match: match[0] if match[0] in keep else _shown(match[0]), text)


def _shown(character: str) -> str:
    return _SIGNS.get(character) or ascii(character)[1:-1]


def displayed(value: Shown, *, keep: str = "") -> Shown:
    """Return a result with `printable` applied to every string in its dataclasses, mappings and sequences.

    Views call this first, so that hostile text cannot reach what they draw. Unchanged objects are returned as they are.
    """
    return mapped(value, partial(printable, keep=keep))


def mapped(value: Shown, change: Callable[[str], str]) -> Shown:
    """Return a result with `change` applied to every string in its dataclasses, mappings and sequences.

    Unchanged objects are returned as they are; changed sequences other than lists and named tuples become tuples.
    """
    return _mapped(value, change)  # type: ignore[no-any-return]


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if value is None or isinstance(value, (float, int, bytes, bytearray)):  # most values in results
        return value
    if isinstance(value, str):
        new = change(value)
        return value if new == value else new
    if isinstance(value, Sequence):
        items = [_mapped(item, change) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Mapping):
        pairs = [(_mapped(key, change), _mapped(item, change)) for key, item in value.items()]
        same = all(key is k and item is i for (key, item), (k, i) in zip(pairs, value.items(), strict=True))
        return value if same else dict(pairs)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        changed = {name: new for name, item in old.items() if (new := _mapped(item, change)) is not item}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def to_json(value: Any, *, indent: int | None = 2, ascii_only: bool = False) -> str:
    """Return JSON that is safe to print: characters that `printable` replaces are escaped, so no information is lost.

    nan and inf, which are not valid JSON, raise a `ValueError`.
    """
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent, allow_nan=False)
    if ascii_only:
        return text
    # json.dumps has escaped line feeds in strings: those that are left belong to the indentation.
    return _UNSAFE.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)
