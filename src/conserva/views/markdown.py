"""Pieces of pages in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TypeVar

from .._util.text import mapped, printable

Results = TypeVar("Results")

_MARKS = re.compile(r"[\\`*|\[\]]")
LONGEST = 50
"""Letters of a text in the name of a file: four bytes each, and a system takes 255."""


def escaped(results: Results) -> Results:
    """Return results in which every string is plain text for Markdown: neither HTML, nor marks, nor a new line."""
    return mapped(
        results, lambda text: _MARKS.sub(lambda mark: f"&#{ord(mark[0])};", escape(printable(text), quote=False))
    )


def file_name(text: str) -> str:
    """Return text as a part of a file's name: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^\w.-]", "_", text)[:LONGEST]


def listed(names: Sequence[str]) -> str:
    """Return names with commas, and `and` before the last."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def stacked(*parts: str) -> str:
    """Return a cell of several lines, none of which breaks."""
    return "<br>".join(part.replace(" ", "&nbsp;") for part in parts if part)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Return a table whose first columns hold words, the others numbers."""
    rows_of_text = [titles, [*("---" for _ in titles[:words]), *("---:" for _ in titles[words:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in rows_of_text)


def picture(name: str, label: str, caption: str = "") -> str:
    """Return a picture with its caption below."""
    return f"![{label}]({name})" + (f"\n\n*{caption}*" if caption else "")
