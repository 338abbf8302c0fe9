"""Printing: results to standard output, messages to standard error, with control characters escaped."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from .._util.text import printable, to_json

Item = TypeVar("Item")


def print_message(text: str) -> None:
    """Print a line to standard error."""
    sys.stderr.write(f"{printable(text)}\n")  # in one write: `print` writes the line feed separately


def print_entry(name: str, text: str) -> None:
    """Print an entry of a list to standard output; in a terminal, a long text continues below its beginning."""
    line = printable(name + text)
    if sys.stdout.isatty():
        line = textwrap.fill(line, shutil.get_terminal_size().columns - 1, subsequent_indent=" " * len(name))
    print(line)


def report_written(*paths: str | Path) -> None:
    """Print the paths of written files to standard error."""
    for path in paths:
        print_message(f"wrote {path}")


def print_json(value: Any) -> None:
    """Print JSON to standard output; characters that its encoding lacks are escaped."""
    print(as_json(value))


def print_json_list(values: Iterable[Item], as_item: Callable[[Item], Any]) -> Iterator[Item]:
    """Print a JSON list to standard output item by item, and yield each value after it is printed."""
    separator = "["
    for value in values:
        sys.stdout.write(f"{separator}\n{as_json(as_item(value))}")
        separator = ","
        yield value
    sys.stdout.write("[]\n" if separator == "[" else "\n]\n")


def as_json(value: Any) -> str:
    """Return JSON in the encoding of standard output."""
    text = to_json(value)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        text = to_json(value, ascii_only=True)
    return text
