"""Groups of words: read from lists or files, with the words that two groups share and those that are ordinary words."""

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
"""Name of a group -> its words, or a file of them; files, or a folder of files, each a group; or "names"."""

Doubt: TypeAlias = Literal["never", "without a capital", "always"]
"""When a name may be an ordinary word instead."""

NAMES = "names"
"""What stands for the lists of first names in the folder of datasets."""

AMBIGUOUS = "ambiguous"
"""The group of words that stand in several groups."""

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Entry:
    """A word or phrase of a group."""

    name: str
    """As the list has it."""
    group: str | None
    """None for one that is not counted, because several groups have it."""
    parts: tuple[str, ...]
    """Its words, in no case."""
    gaps: tuple[str, ...]
    """What stands between them: a blank for white space, otherwise the marks without white space."""
    capitals: tuple[bool, ...]
    """Which of its words begin with a capital letter."""
    doubt: Doubt
    """Whether it may be an ordinary word."""


@dataclass(frozen=True)
class Lexicon:
    """All groups' words."""

    groups: tuple[str, ...]
    """In the order they were given, the ambiguous ones last."""
    entries: tuple[Entry, ...]

    @property
    def fingerprint(self) -> str:
        """A hash of what is looked for."""
        return hashlib.sha256(repr(self.entries).encode()).hexdigest()[:16]

    @property
    def sizes(self) -> dict[str, int]:
        """How many words each group has."""
        return {name: sum(entry.group == name for entry in self.entries) for name in self.groups}


def lexicon_of(groups: Groups, *, ordinary: str = "skip", ambiguous: str = "own") -> Lexicon:
    """Return the words of groups.

    A word that several groups have belongs to none of them: it is of the group "ambiguous" (`ambiguous="own"`), or not
    counted (`"skip"`). A word that is listed with a capital letter is a name; if it is an ordinary word, too ("Will",
    "Grace"), it is counted only where its writing tells that it is a name (`ordinary="skip"`), or always (`"keep"`).
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


def words_in(text: str) -> list[tuple[int, int]]:
    """Return where the words of a text begin and end: runs of letters, digits and the accents that stand on them."""
    found: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        start, end = match.span()
        if found and found[-1][1] == start:  # an accent of its own stands in between
            start = found.pop()[0]
        while end < len(text) and unicodedata.category(text[end]).startswith("M"):
            end += 1
        found.append((start, end))
    return found


def folded(word: str) -> str:
    """Return a word in no case, its accents in one writing."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", word).casefold())


def gap(between: str) -> str:
    """Return what stands between two words: a blank for white space, otherwise the marks without white space.

    Hyphens are one mark, whichever of Unicode's they are, and so are apostrophes.
    """
    marks = "".join(between.split())
    return marks.translate(_ONE_WRITING) or " "


_ONE_WRITING = str.maketrans({"\u2010": "-", "\u2011": "-", "\u2019": "'", "\u02bc": "'"})


# How groups are given.


def _read(groups: Groups) -> dict[str, list[str]]:
    """Return the words of every group, as they are listed."""
    if isinstance(groups, Mapping):
        found = {str(name): _words(str(name), given) for name, given in groups.items()}
    elif isinstance(groups, (str, Path)):
        found = _of_files(_files(groups))
    elif isinstance(groups, Sequence):
        found = _of_files([expanded(one) for one in groups])
    else:
        raise Error(f"groups={groups!r} is neither a mapping of names to words, nor files of words, nor {NAMES!r}.")
    if not found:
        raise Error(f"groups={groups!r} names no group: give one or more, as {{'female': [...], 'male': [...]}}.")
    if AMBIGUOUS in found:
        raise Error(f"A group is called {AMBIGUOUS!r}, which is for words that several groups have: rename it.")
    return found


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
                f"groups={NAMES!r} is read from the folder of datasets: name it with the environment variable "
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
    found: dict[str, list[str]] = {}
    for path in files:
        if path.stem in found:
            raise Error(f"Two files of groups are called {path.stem!r}: rename {str(path)!r}.")
        found[path.stem] = _lines(path)
    return found


def _lines(path: Path) -> list[str]:
    """Return the words of a file, one a line."""
    content = read_text(path, f"The group's file {str(path)!r}", LARGEST_SETTINGS)
    words = [line.strip() for line in content.split("\n") if line.strip()]
    if not words:
        raise Error(f"The group's file {str(path)!r} is empty: write one word or phrase a line.")
    return words


# What the words are.


def _distinct(group: str, words: Sequence[str]) -> dict[tuple[Any, ...], str]:
    """Return a group's words by what they are known by: listed twice, a word counts once."""
    found: dict[tuple[Any, ...], str] = {}
    for word in words:
        parts, gaps = _taken_apart(word)
        if not parts:
            raise Error(f"Group {group!r} has {word!r}, which holds no letter and no digit: mend it or leave it out.")
        first = found.setdefault((parts, gaps), word)
        if _is_name(first) != _is_name(word):
            raise Error(
                f"Group {group!r} has {first!r} and {word!r}: with a capital letter it is looked for as a name, "
                "without as a word in any case. Keep one."
            )
    return found


def _taken_apart(word: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    places = words_in(word)
    between = [word[a[1] : b[0]] for a, b in pairwise(places)]
    return tuple(folded(word[start:end]) for start, end in places), tuple(map(gap, between))


def _is_name(word: str) -> bool:
    return any(map(str.isupper, word))


def _entry(word: str, group: str | None, keep: bool) -> Entry:
    parts, gaps = _taken_apart(word)
    capitals = tuple(word[start].isupper() for start, _ in words_in(word))
    doubt: Doubt = "never"
    if len(parts) == 1 and capitals[0] and not keep:
        doubt = ordinary_words().get(parts[0], "never")
    return Entry(" ".join(word.split()), group, parts, gaps, capitals, doubt)


@cache
def ordinary_words() -> dict[str, Doubt]:
    """Return the first names that are ordinary words, and when one cannot tell; the file says how they were found."""
    content = (resources.files("conserva") / "bias_study" / "ordinary_words.txt").read_text(encoding="utf-8")
    words = [word for line in content.splitlines() if not line.startswith("#") for word in line.split()]
    return {word.casefold(): "always" if word[0].isupper() else "without a capital" for word in words}
