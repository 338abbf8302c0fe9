"""The gate for text that leaves: what a model, a file or a user wrote, made safe to display."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

Shown = TypeVar("Shown")

ERROR_LENGTH = 2000
"""How many characters of an error message are shown."""

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters: C0, DEL, C1
    "\u2028\u2029"  # line and paragraph separators
    "\u202a-\u202e\u2066-\u206f"  # embeddings, overrides and isolates of text direction, deprecated controls
    "\ufeff\ufff9-\ufffb"  # the byte order mark, which decoders swallow, and annotations, which leave the line
    "\ud800-\udfff\ufffe\uffff]"  # lone surrogates and noncharacters, which UTF-8 or XML do not allow
)
"""What acts on the text around it. What only looks like nothing stays: joiners make words and emoji, marks of direction
belong to right-to-left text."""


_SIGNS = {"\n": "↵", "\t": "⇥"}


def printable(text: str, *, keep: str = "", limit: int | None = None) -> str:
    r"""Return text in which nothing can act on a terminal, a page or an XML parser.

    A line feed becomes "↵" and a tab "⇥". Other characters that act become escapes, as "\x1b" and "\u202e": there are
    symbols for control characters, but few fonts have them.

    Parameters
    ----------
    text
        Anything that a model, a file or a user wrote.
    keep
        Control characters that stay as they are, as "\n".
    limit
        How many characters of the text are shown at most; longer text is cut in the middle.
    """
    if limit is not None and len(text) > limit:
        head = limit * 2 // 3
        text = f"{text[:head]} […] {text[len(text) - (limit - head) :]}"
    if text.isprintable():  # which almost all text is
        return text
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _shown(found[0]), text)


def _shown(character: str) -> str:
    return _SIGNS.get(character) or ascii(character)[1:-1]


def displayed(value: Shown, *, keep: str = "") -> Shown:
    """Return a result with every string in it made printable: dataclasses, mappings and sequences are walked through.

    Views call this first, so that nothing they draw can be hostile. What needs no change is returned as it is.
    """
    return mapped(value, partial(printable, keep=keep))


def mapped(value: Shown, change: Callable[[str], str]) -> Shown:
    """Return a result with every string in it changed: dataclasses, mappings and sequences are walked through.

    What needs no change is returned as it is; sequences that are neither lists nor tuples become tuples.
    """
    return _mapped(value, change)  # type: ignore[no-any-return]


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if value is None or isinstance(value, (float, int, bytes, bytearray)):  # most of what results are made of
        return value
    if isinstance(value, str):
        new = change(value)
        return value if new == value else new
    if isinstance(value, Sequence):
        items = [_mapped(one, change) for one in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Mapping):
        pairs = [(_mapped(key, change), _mapped(one, change)) for key, one in value.items()]
        same = all(key is k and one is o for (key, one), (k, o) in zip(pairs, value.items(), strict=True))
        return value if same else dict(pairs)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        changed = {name: new for name, one in old.items() if (new := _mapped(one, change)) is not one}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def to_json(value: Any, *, indent: int | None = 2, ascii_only: bool = False) -> str:
    """Return JSON that is safe to print: what `printable` would replace is escaped as JSON does it, so nothing is lost.

    Numbers that JSON has no notation for, nan and inf, raise a `ValueError`.
    """
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent, allow_nan=False)
    if ascii_only:
        return text
    # json.dumps has escaped C0 already: what is left of it is its own indentation.
    return _UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)
