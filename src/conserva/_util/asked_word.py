"""The description of an input that asks about one of its words: the text, and then the word in brackets."""

from __future__ import annotations

import re

_ASKED = re.compile(r" \[word: .*\]\Z", re.DOTALL)


def with_asked_word(text: str, word: str) -> str:
    """Return the description of a text and a word."""
    return f"{text} [word: {word}]"


def split_asked_word(description: str) -> tuple[str, str]:
    """Return the text, and what follows it: empty if no word is asked about."""
    found = _ASKED.search(description)
    return (description[: found.start()], found[0]) if found else (description, "")
