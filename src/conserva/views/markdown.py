"""Helpers that write Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TypeVar

from .._util.text import mapped, printable

Results = TypeVar("Results")

_MARKS = re.compile(r"[\\`*|\[\]]")
LONGEST = 50
"""Maximum number of characters of a text in a file name: they may take 4 bytes each, of 255."""


def escaped(results: Results) -> Results:
    """Return results with every string escaped for Markdown: HTML, Markdown syntax and line breaks are plain text."""
    return mapped(
        results, lambda text: _MARKS.sub(lambda mark: f"&#{ord(mark[0])};", escape(printable(text), quote=False))
    )


def file_name(text: str) -> str:
    """Return text as part of a file name: only letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^\w.-]", "_", text)[:LONGEST]


def listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence, such as "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def stacked(*parts: str) -> str:
    """Return a table cell of several lines, which do not wrap."""
    return "<br>".join(part.replace(" ", "&nbsp;") for part in parts if part)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Return a table; the first `words` columns are left-aligned, the others (numbers) right-aligned."""
    rows_of_text = [titles, [*("---" for _ in titles[:words]), *("---:" for _ in titles[words:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in rows_of_text)


def picture(name: str, label: str, caption: str = "") -> str:
    """Return an image with its caption below."""
    return f"![{label}]({name})" + (f"\n\n*{caption}*" if caption else "")
