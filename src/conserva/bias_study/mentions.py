"""Mentions of groups' words in texts.

A mention is a whole word: there is no letter, digit or underscore next to it, and no hyphen or apostrophe that connects
it with another word. So "jean-luc" does not mention "jean", unless "jean-luc" is listed, "don't" does not mention
"don", and "d'angelo" does not mention "angelo". A possessive ending is not a part of the name: "eastwood's", "eastwood
's", "james'" and "john'll" mention eastwood, james and john. The words of a phrase can be separated by any white space.
Of overlapping mentions, the longest counts.

Case: a name (listed with a capital letter) must have its capitals, unless the text has no capitals at all; a word
listed in lower case matches in any case. A name that is also an ordinary word matches only where it is capitalised
within a sentence, and not in upper case: at the beginning of a sentence, or in a text without capitals, "will" is
ambiguous.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ..errors import Error
from .lexicon import Entry, Lexicon, folded, gap, word_spans

Tagger: TypeAlias = Callable[[str], Iterable[tuple[int, int, str]]]
"""Text -> its entities, as (start character, end character, group)."""

_HYPHENS = "-\u2010\u2011"
_APOSTROPHES = "'\u2019\u02bc"
_TIED_TO_NAMES = frozenset({"s", "d", "ll", "ve", "re", "m"})
"""English endings after a name and an apostrophe."""
_SENTENCE_BEGINS = re.compile(r"(?:^|[.!?:\u2026\n\"\u201c\u201d\u2018(\[]|<br />)[\s'\u2019)\]*_-]*$")
"""Text that ends directly before a sentence or a quotation."""


@dataclass(frozen=True)
class Found:
    """A mention, with its start and end characters."""

    start: int
    end: int
    entity: str
    group: str


class Finder(Protocol):
    """An object that finds mentions in texts."""

    def find(self, text: str) -> tuple[list[Found], Counter[str]]:
        """Return the mentions in a text, in order, and the counts of words that were found but do not count."""


class Words:
    """Finds the words of a lexicon."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._by_first: dict[str, list[Entry]] = {}
        for entry in lexicon.entries:
            self._by_first.setdefault(entry.parts[0], []).append(entry)
        for entries in self._by_first.values():
            entries.sort(key=lambda entry: -len(entry.parts))

    def find(self, text: str) -> tuple[list[Found], Counter[str]]:
        """Return the mentions in a text, in order, and the counts of words that were found but do not count."""
        spans = word_spans(text)
        words = [folded(text[start:end]) for start, end in spans]
        cased = any(map(str.isupper, text))
        matches: list[tuple[int, int, Entry]] = []
        for i, word in enumerate(words):
            for entry in self._by_first.get(word, ()):
                if self._matches(entry, text, spans, words, i, cased):
                    matches.append((spans[i][0], spans[i + len(entry.parts) - 1][1], entry))
                    break  # the longest that begins here
        left_out: Counter[str] = Counter()
        mentions = []
        for start, end, entry in _without_overlaps(matches):
            if entry.group is None or _in_doubt(entry, text, start, end, cased):
                left_out[entry.name] += 1
            else:
                mentions.append(Found(start, end, entry.name, entry.group))
        return mentions, left_out

    def _matches(
        self, entry: Entry, text: str, spans: Sequence[tuple[int, int]], words: Sequence[str], i: int, cased: bool
    ) -> bool:
        """Return whether an entry matches the text from word `i` on."""
        last = i + len(entry.parts)
        if tuple(words[i:last]) != entry.parts:
            return False
        between = [gap(text[spans[j][1] : spans[j + 1][0]]) for j in range(i, last - 1)]
        if tuple(between) != entry.gaps:
            return False
        if cased and any(capital and not text[spans[i + j][0]].isupper() for j, capital in enumerate(entry.capitals)):
            return False
        return not _tied_before(text, spans[i][0]) and not _tied_after(text, spans, last - 1)


class Tagged:
    """Finds the entities of a tagger, named by their text in lower case."""

    def __init__(self, tagger: Tagger) -> None:
        self._tagger = tagger

    def find(self, text: str) -> tuple[list[Found], Counter[str]]:
        """Return the entities in a text, in order."""
        mentions = []
        for start, end, group in self._tagger(text):
            if not 0 <= start < end <= len(text):
                raise Error(f"The tagger found {(start, end)} in a text of {len(text)} characters: {text[:40]!r}.")
            mentions.append(Found(start, end, " ".join(folded(text[start:end]).split()), str(group)))
        mentions.sort(key=lambda mention: (mention.start, mention.end))
        return mentions, Counter()


def _without_overlaps(matches: Sequence[tuple[int, int, Entry]]) -> list[tuple[int, int, Entry]]:
    """Return matches without overlaps, in the order of the text; of overlapping ones, the longest is kept."""
    if len(matches) < 2:
        return list(matches)
    chosen: list[tuple[int, int, Entry]] = []
    for match in sorted(matches, key=lambda each: (each[0] - each[1], each[0])):
        if all(match[1] <= other[0] or other[1] <= match[0] for other in chosen):
            chosen.append(match)
    return sorted(chosen, key=lambda each: each[0])


def _tied_before(text: str, start: int) -> bool:
    """Return whether a hyphen or an apostrophe connects the word at `start` with a word before it."""
    return start > 1 and text[start - 1] in _HYPHENS + _APOSTROPHES and text[start - 2].isalnum()


def _tied_after(text: str, spans: Sequence[tuple[int, int]], last: int) -> bool:
    """Return whether a hyphen or an apostrophe connects a word with the next one, other than an English ending."""
    end = spans[last][1]
    if last + 1 == len(spans) or spans[last + 1][0] != end + 1:
        return False
    after = text[spans[last + 1][0] : spans[last + 1][1]]
    return text[end] in _HYPHENS or (text[end] in _APOSTROPHES and after.casefold() not in _TIED_TO_NAMES)


def _in_doubt(entry: Entry, text: str, start: int, end: int, cased: bool) -> bool:
    """Return whether an entry can be an ordinary word here."""
    if entry.doubt != "without a capital":
        return entry.doubt == "always"
    return not cased or text[start:end].isupper() or _SENTENCE_BEGINS.search(text, 0, start) is not None
