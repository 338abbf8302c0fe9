"""What commands print: results on standard output, everything else on standard error, all of it safe to display."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from .._util.text import printable, to_json

Item = TypeVar("Item")


def say(text: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(f"{printable(text)}\n")  # at once: `print` writes the line feed apart, and may be interrupted


def say_written(*paths: str | Path) -> None:
    """Say which files were written."""
    for path in paths:
        say(f"wrote {path}")


def put_json(value: Any) -> None:
    """Print JSON on standard output; where its encoding lacks characters, they stand as JSON's own escapes."""
    print(as_json(value))


def put_json_list(values: Iterable[Item], as_item: Callable[[Item], Any]) -> Iterator[Item]:
    """Print a JSON list on standard output, item by item, and yield each value once it is printed."""
    separator = "["
    for value in values:
        sys.stdout.write(f"{separator}\n{as_json(as_item(value))}")
        separator = ","
        yield value
    sys.stdout.write("[]\n" if separator == "[" else "\n]\n")


def as_json(value: Any) -> str:
    """Return JSON that standard output can show."""
    text = to_json(value)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        text = to_json(value, ascii_only=True)
    return text
