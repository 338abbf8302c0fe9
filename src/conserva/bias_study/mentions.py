"""Where words of groups stand in a text.

A mention is a whole word: no letter, digit or underscore touches it, nor does a hyphen or apostrophe that ties it to
another word. So "jean-luc" does not mention "jean", unless "jean-luc" is listed, "don't" does not mention "don", and
"d'angelo" not "angelo". A possessive is not a part of the name: "eastwood's", "eastwood 's", "james'" and
"john'll" mention eastwood, james and john. Between the words of a phrase any white space may stand. Where mentions
would overlap, the longest counts.

Case: a name (listed with a capital letter) must have its capitals, unless the text has none at all; a word that is
listed in lower case is met in any case. A name that is an ordinary word, too, is met only where it has a capital letter
inside a sentence, and is not written in capitals throughout: at the beginning of a sentence, or in a text without
capitals, "will" tells nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ..errors import Error
from .lexicon import Entry, Lexicon, folded, gap, words_in

Tagger: TypeAlias = Callable[[str], Iterable[tuple[int, int, str]]]
"""From a text to its entities: where each begins and ends, in characters, and its group."""

_HYPHENS = "-\u2010\u2011"
_APOSTROPHES = "'\u2019\u02bc"
_TIED_TO_NAMES = frozenset({"s", "d", "ll", "ve", "re", "m"})
"""What English writes after a name and an apostrophe, as a word of its own."""
_SENTENCE_BEGINS = re.compile(r"(?:^|[.!?:\u2026\n\"\u201c\u201d\u2018(\[]|<br />)[\s'\u2019)\]*_-]*$")
"""What stands before a sentence, or a quoted one."""


@dataclass(frozen=True)
class Found:
    """A mention, by its place in the text."""

    start: int
    end: int
    entity: str
    group: str


class Finder(Protocol):
    """What finds mentions."""

    def find(self, text: str) -> tuple[list[Found], Counter[str]]:
        """Return the mentions in a text, in their order, and how often words were met that are not counted."""


class Words:
    """Finds the words of a lexicon."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._by_first: dict[str, list[Entry]] = {}
        for entry in lexicon.entries:
            self._by_first.setdefault(entry.parts[0], []).append(entry)
        for entries in self._by_first.values():
            entries.sort(key=lambda entry: -len(entry.parts))

    def find(self, text: str) -> tuple[list[Found], Counter[str]]:
        """Return the mentions in a text, in their order, and how often words were met that are not counted."""
        places = words_in(text)
        words = [folded(text[start:end]) for start, end in places]
        cased = any(map(str.isupper, text))
        met: list[tuple[int, int, Entry]] = []
        for i, word in enumerate(words):
            for entry in self._by_first.get(word, ()):
                if self._stands(entry, text, places, words, i, cased):
                    met.append((places[i][0], places[i + len(entry.parts) - 1][1], entry))
                    break  # the longest that begins here
        left_out: Counter[str] = Counter()
        found = []
        for start, end, entry in _apart(met):
            if entry.group is None or _in_doubt(entry, text, start, end, cased):
                left_out[entry.name] += 1
            else:
                found.append(Found(start, end, entry.name, entry.group))
        return found, left_out

    def _stands(
        self, entry: Entry, text: str, places: Sequence[tuple[int, int]], words: Sequence[str], i: int, cased: bool
    ) -> bool:
        """Return whether an entry stands at a word of the text."""
        last = i + len(entry.parts)
        if tuple(words[i:last]) != entry.parts:
            return False
        between = [gap(text[places[j][1] : places[j + 1][0]]) for j in range(i, last - 1)]
        if tuple(between) != entry.gaps:
            return False
        if cased and any(capital and not text[places[i + j][0]].isupper() for j, capital in enumerate(entry.capitals)):
            return False
        return not _tied_before(text, places[i][0]) and not _tied_after(text, places, last - 1)


class Tagged:
    """Finds what a tagger finds: an entity is known by its writing, in no case."""

    def __init__(self, tagger: Tagger) -> None:
        self._tagger = tagger

    def find(self, text: str) -> tuple[list[Found], Counter[str]]:
        """Return the entities in a text, in their order."""
        found = []
        for start, end, group in self._tagger(text):
            if not 0 <= start < end <= len(text):
                raise Error(f"The tagger found {(start, end)} in a text of {len(text)} characters: {text[:40]!r}.")
            found.append(Found(start, end, " ".join(folded(text[start:end]).split()), str(group)))
        found.sort(key=lambda one: (one.start, one.end))
        return found, Counter()


def _apart(met: Sequence[tuple[int, int, Entry]]) -> list[tuple[int, int, Entry]]:
    """Return those that do not overlap, the longest first to be chosen, in the order of the text."""
    if len(met) < 2:
        return list(met)
    chosen: list[tuple[int, int, Entry]] = []
    for one in sorted(met, key=lambda one: (one[0] - one[1], one[0])):
        if all(one[1] <= other[0] or other[1] <= one[0] for other in chosen):
            chosen.append(one)
    return sorted(chosen, key=lambda one: one[0])


def _tied_before(text: str, start: int) -> bool:
    """Return whether a hyphen or an apostrophe ties what begins here to a word before it."""
    return start > 1 and text[start - 1] in _HYPHENS + _APOSTROPHES and text[start - 2].isalnum()


def _tied_after(text: str, places: Sequence[tuple[int, int]], last: int) -> bool:
    """Return whether a hyphen or an apostrophe ties a word to the one after it, but for what English ties to names."""
    end = places[last][1]
    if last + 1 == len(places) or places[last + 1][0] != end + 1:
        return False
    after = text[places[last + 1][0] : places[last + 1][1]]
    return text[end] in _HYPHENS or (text[end] in _APOSTROPHES and after.casefold() not in _TIED_TO_NAMES)


def _in_doubt(entry: Entry, text: str, start: int, end: int, cased: bool) -> bool:
    """Return whether an entry may be an ordinary word here."""
    if entry.doubt != "without a capital":
        return entry.doubt == "always"
    return not cased or text[start:end].isupper() or _SENTENCE_BEGINS.search(text, 0, start) is not None
