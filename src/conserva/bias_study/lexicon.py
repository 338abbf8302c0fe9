"""Groups of words from lists or files, with special treatment of words in several groups and of ordinary words."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

from .._util.files import LARGEST_SETTINGS, expanded, read_text
from ..datasets.catalogue import FOLDER_VARIABLE
from ..errors import Error

Groups: TypeAlias = "str | Path | Sequence[str | Path] | Mapping[str, str | Path | Sequence[str]]"
"""A mapping of the name of a group to its words or to a file; files or a folder of files, each a group; or "names"."""

Doubt: TypeAlias = Literal["never", "without a capital", "always"]
"""When a name can be an ordinary word instead."""

NAMES = "names"
"""The value of `groups` for the lists of first names in the folder of datasets."""

AMBIGUOUS = "ambiguous"
"""The group of words that are in several groups."""

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Entry:
    """A word or phrase of a group."""

    name: str
    """The word or phrase as listed."""
    group: str | None
    """None if it is in several groups and is not counted."""
    parts: tuple[str, ...]
    """Its words, case-folded."""
    gaps: tuple[str, ...]
    """The text between its words: a space for white space, otherwise punctuation without white space."""
    capitals: tuple[bool, ...]
    """Whether each of its words begins with a capital letter."""
    doubt: Doubt
    """When it can be an ordinary word."""


@dataclass(frozen=True)
class Lexicon:
    """The words of all groups."""

    groups: tuple[str, ...]
    """The names of the groups in the given order, with "ambiguous" last."""
    entries: tuple[Entry, ...]

    @property
    def fingerprint(self) -> str:
        """A hash of all entries."""
        return hashlib.sha256(repr(self.entries).encode()).hexdigest()[:16]

    @property
    def sizes(self) -> dict[str, int]:
        """The number of words of each group."""
        return {name: sum(entry.group == name for entry in self.entries) for name in self.groups}


def lexicon_of(groups: Groups, *, ordinary: str = "skip", ambiguous: str = "own") -> Lexicon:
    """Return the lexicon of groups.

    Parameters
    ----------
    groups
        The groups and their words.
    ordinary
        How names that are also ordinary words ("Will", "Grace") are treated: "skip" counts them only where their
        capitals show that they are names, "keep" counts them always. Names are words listed with a capital letter.
    ambiguous
        How words of several groups are treated: "own" puts them into the group "ambiguous", "skip" does not count them.
    """
    for option, value, known in (("ordinary", ordinary, ("skip", "keep")), ("ambiguous", ambiguous, ("own", "skip"))):
        if value not in known:
            raise Error(f"{option}={value!r} is unknown: choose {known[0]!r} or {known[1]!r}.")
    listed = {name: _distinct(name, words) for name, words in _read(groups).items()}
    owners: dict[tuple[Any, ...], list[str]] = {}
    for name, words in listed.items():
        for key in words:
            owners.setdefault(key, []).append(name)
    for name, words in listed.items():
        if all(len(owners[key]) > 1 for key in words):
            others = sorted({other for key in words for other in owners[key]} - {name})
            raise Error(
                f"Group {name!r} has no word of its own: all {len(words)} are in {', '.join(map(repr, others))} too. "
                "Give groups that differ."
            )
    shared = AMBIGUOUS if ambiguous == "own" else None
    entries: dict[tuple[Any, ...], Entry] = {}
    for name, words in listed.items():
        for key, word in words.items():
            group = name if len(owners[key]) == 1 else shared
            entries.setdefault(key, _entry(word, group, ordinary == "keep"))
    has_shared = any(entry.group == AMBIGUOUS for entry in entries.values())
    return Lexicon((*listed, AMBIGUOUS) if has_shared else tuple(listed), tuple(entries.values()))


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of the words of a text: runs of letters, digits and combining marks."""
    spans: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        start, end = match.span()
        if spans and spans[-1][1] == start:  # a combining mark is in between
            start = spans.pop()[0]
        while end < len(text) and unicodedata.category(text[end]).startswith("M"):
            end += 1
        spans.append((start, end))
    return spans


def folded(word: str) -> str:
    """Return a word case-folded, in Unicode normal form NFC."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", word).casefold())


def gap(between: str) -> str:
    """Return the text between two words: a space for white space, otherwise punctuation without white space.

    All hyphens of Unicode become the same character, and so do all apostrophes.
    """
    marks = "".join(between.split())
    return marks.translate(_NORMALISED) or " "


_NORMALISED = str.maketrans({"\u2010": "-", "\u2011": "-", "\u2019": "'", "\u02bc": "'"})


# Sources of groups.


def _read(groups: Groups) -> dict[str, list[str]]:
    """Return the words of every group as listed."""
    if isinstance(groups, Mapping):
        listed = {str(name): _words(str(name), given) for name, given in groups.items()}
    elif isinstance(groups, (str, Path)):
        listed = _of_files(_files(groups))
    elif isinstance(groups, Sequence):
        listed = _of_files([expanded(path) for path in groups])
    else:
        raise Error(f"groups={groups!r} is neither a mapping of names to words, nor files of words, nor {NAMES!r}.")
    if not listed:
        raise Error(f"groups={groups!r} is empty: give one or more, such as {{'female': [...], 'male': [...]}}.")
    if AMBIGUOUS in listed:
        raise Error(f"A group is called {AMBIGUOUS!r}, which is reserved for words of several groups: rename it.")
    return listed


def _words(name: str, given: Any) -> list[str]:
    if isinstance(given, (str, Path)):
        return _lines(expanded(given))
    words = list(given) if isinstance(given, Iterable) else []
    if not words:
        raise Error(f"Group {name!r} is {given!r}: give its words, or a file of them.")
    if wrong := [word for word in words if not isinstance(word, str)]:
        raise Error(f"Group {name!r} has {wrong[0]!r} among its words: they must be strings.")
    return words


def _files(given: str | Path) -> list[Path]:
    """Return the files of a folder of groups, or of the lists of first names."""
    if given == NAMES:
        folder = os.environ.get(FOLDER_VARIABLE)
        if not folder:
            raise Error(
                f"groups={NAMES!r} is read from the folder of datasets: set it with the environment variable "
                f"{FOLDER_VARIABLE}, or give a folder of lists."
            )
        given = Path(folder) / NAMES
    path = expanded(given)
    if not os.path.isdir(path):
        return [path]
    files = sorted(path.glob("*.txt"))
    if not files:
        raise Error(f"groups={str(path)!r} is a folder without a .txt file: put one there for each group.")
    return files


def _of_files(files: Sequence[Path]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for path in files:
        if path.stem in groups:
            raise Error(f"Two files of groups are called {path.stem!r}: rename {str(path)!r}.")
        groups[path.stem] = _lines(path)
    return groups


def _lines(path: Path) -> list[str]:
    """Return the words of a file with one word or phrase per line."""
    content = read_text(path, f"The group's file {str(path)!r}", LARGEST_SETTINGS)
    words = [line.strip() for line in content.split("\n") if line.strip()]
    if not words:
        raise Error(f"The group's file {str(path)!r} is empty: write one word or phrase per line.")
    return words


# Entries of words.


def _distinct(group: str, words: Sequence[str]) -> dict[tuple[Any, ...], str]:
    """Return the words of a group by their parts and gaps, without duplicates."""
    by_key: dict[tuple[Any, ...], str] = {}
    for word in words:
        parts, gaps = _split(word)
        if not parts:
            raise Error(f"Group {group!r} has {word!r}, which has no letter and no digit: correct or remove it.")
        first = by_key.setdefault((parts, gaps), word)
        if _is_name(first) != _is_name(word):
            raise Error(
                f"Group {group!r} has {first!r} and {word!r}: with a capital letter it matches as a name, without one "
                "as a word in any case. Keep one."
            )
    return by_key


def _split(word: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parts and the gaps of a word or phrase."""
    spans = word_spans(word)
    between = [word[a[1] : b[0]] for a, b in pairwise(spans)]
    return tuple(folded(word[start:end]) for start, end in spans), tuple(map(gap, between))


def _is_name(word: str) -> bool:
    return any(map(str.isupper, word))


def _entry(word: str, group: str | None, keep: bool) -> Entry:
    parts, gaps = _split(word)
    capitals = tuple(word[start].isupper() for start, _ in word_spans(word))
    doubt: Doubt = "never"
    if len(parts) == 1 and capitals[0] and not keep:
        doubt = ordinary_words().get(parts[0], "never")
    return Entry(" ".join(word.split()), group, parts, gaps, capitals, doubt)


@cache
def ordinary_words() -> dict[str, Doubt]:
    """Return the first names that are also ordinary words, and when they are ambiguous; the file has their origin."""
    content = (resources.files("conserva") / "bias_study" / "ordinary_words.txt").read_text(encoding="utf-8")
    words = [word for line in content.splitlines() if not line.startswith("#") for word in line.split()]
    return {word.casefold(): "always" if word[0].isupper() else "without a capital" for word in words}
