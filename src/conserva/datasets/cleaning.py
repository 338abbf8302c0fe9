"""Cleaning of published texts: characters that were read wrongly, and rows that a model should not be trained on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Sequence
from hashlib import sha256

Row = tuple[str, int]
"""A text and the index of its class."""

# Windows-1252 gives most bytes from 0x80 to 0x9F a character, above all punctuation; five it leaves undefined.
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
    """Return a text with its characters as they were meant, and without white space at its ends.

    UTF-8 that was read as Windows-1252 is read again; C1 controls become what they are in Windows-1252, or go if they
    are nothing there; `-lrb-` and its like (SST-2, Semaine) become brackets, and `<br />` (IMDB) a line break.
    """
    if not text.isascii():
        # In this order: a control may be one of the bytes of a character that was encoded twice.
        text = _TWICE_ENCODED.sub(_read_again, text).translate(_CONTROLS)
    text = _BRACKET.sub(lambda found: _BRACKETS[found.group()], text)
    return text.replace("<br />", "\n").strip()


def _read_again(found: re.Match[str]) -> str:
    """Return the character whose UTF-8 bytes these are; what is no UTF-8 is left alone, so that nothing is guessed."""
    try:
        return bytes(_BYTES[char] for char in found.group()).decode("utf-8")
    except UnicodeDecodeError:
        return found.group()


def letters_and_digits(text: str) -> str:
    """Return the letters and digits of a text in lower case: what is left of it whatever tokeniser it went through."""
    return _BETWEEN_WORDS.sub("", text.lower())


def without(rows: Sequence[Row], unwanted: Container[str], compared: Callable[[str], str] = str) -> list[Row]:
    """Return the rows whose text, as it is compared, is not among the unwanted."""
    return [row for row in rows if compared(row[0]) not in unwanted]


def contradictory(rows: Sequence[Row]) -> set[str]:
    """Return the texts that have several labels: at most one is right, and it is unknown which."""
    first: dict[str, int] = {}
    return {text for text, label in rows if first.setdefault(text, label) != label}


def held_out(rows: Sequence[Row], per_class: int) -> set[str]:
    """Return the texts of a validation set: as many of each class, drawn from the texts that occur once.

    Those with the smallest hashes are taken, so the draw is the same whatever the order of the rows; a text that occurs
    more than once is never taken, so that no copy of it stays behind.
    """
    times = Counter(text for text, _ in rows)
    chosen: set[str] = set()
    for label in {label for _, label in rows}:
        once = [text for text, its_label in rows if its_label == label and times[text] == 1]
        chosen.update(sorted(once, key=lambda text: sha256(text.encode()).digest())[:per_class])
    return chosen
