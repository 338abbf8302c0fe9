"""Cleaning of published texts: characters that were decoded wrongly, and rows that are unsuitable for training."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Sequence
from hashlib import sha256

Row = tuple[str, int]
"""A text and the index of its class."""

# Windows-1252 maps most bytes from 0x80 to 0x9F to a character, mainly punctuation; five are undefined.
_WINDOWS = {byte: bytes([byte]).decode("cp1252", errors="ignore") for byte in range(0x80, 0x100)}
_CONTROLS = {byte: char for byte, char in _WINDOWS.items() if byte < 0xA0}

_BYTES = {char or chr(byte): byte for byte, char in _WINDOWS.items()}
_CONTINUATION = "[" + "".join(char for char, byte in _BYTES.items() if byte < 0xC0) + "]"
_TWICE_ENCODED = re.compile(
    f"[\xc2-\xdf]{_CONTINUATION}|[\xe0-\xef]{_CONTINUATION}{{2}}|[\xf0-\xf4]{_CONTINUATION}{{3}}"
)
_BRACKETS = {"-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]"}
_BRACKET = re.compile("|".join(_BRACKETS))
_BETWEEN_WORDS = re.compile(r"[\W_]+")


def clean_text(text: str) -> str:
    """Return a text with encoding errors and markup repaired, and without white space at its ends.

    UTF-8 that was decoded as Windows-1252 is decoded again; C1 control characters become their Windows-1252 characters,
    or are removed if undefined there; `-lrb-` and similar (SST-2, Semaine) become brackets, and `<br />` (IMDB) a line
    break.
    """
    if not text.isascii():
        # In this order: a control character can be one of the bytes of a character that was encoded twice.
        text = _TWICE_ENCODED.sub(_decoded_again, text).translate(_CONTROLS)
    text = _BRACKET.sub(lambda match: _BRACKETS[match.group()], text)
    return text.replace("<br />", "\n").strip()


def _decoded_again(match: re.Match[str]) -> str:
    """Return the character with these UTF-8 bytes; a sequence that is not valid UTF-8 is left unchanged."""
    try:
        return bytes(_BYTES[char] for char in match.group()).decode("utf-8")
    except UnicodeDecodeError:
        return match.group()


def letters_and_digits(text: str) -> str:
    """Return the letters and digits of a text in lower case, which do not depend on how the text was tokenized."""
    return _BETWEEN_WORDS.sub("", text.lower())


def without(rows: Sequence[Row], unwanted: Container[str], compared: Callable[[str], str] = str) -> list[Row]:
    """Return the rows for which `compared(text)` is not in `unwanted`."""
    return [row for row in rows if compared(row[0]) not in unwanted]


def contradictory(rows: Sequence[Row]) -> set[str]:
    """Return the texts that occur with different labels."""
    first: dict[str, int] = {}
    return {text for text, label in rows if first.setdefault(text, label) != label}


def held_out(rows: Sequence[Row], per_class: int) -> set[str]:
    """Return the texts of a validation set: `per_class` texts of each class, chosen from the texts that occur once.

    The texts with the smallest hashes are chosen, so the choice does not depend on the order of rows. Texts that occur
    more than once are never chosen, so that no copy of them remains in the training set.
    """
    times = Counter(text for text, _ in rows)
    chosen: set[str] = set()
    for label in {label for _, label in rows}:
        once = [text for text, its_label in rows if its_label == label and times[text] == 1]
        chosen.update(sorted(once, key=lambda text: sha256(text.encode()).digest())[:per_class])
    return chosen
