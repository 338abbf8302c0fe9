"""The text of an explanation as it was written, cut into its features.

Offsets are indices of the text as it was given. These functions therefore take an explanation before `displayed`, which
changes the lengths of texts, and return strings that are printable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .._util.asked_word import split_asked_word
from .._util.text import printable
from ..results.explanation import Explanation
from ..results.trace import Trace

LEFT_OUT = "…"
"""Stands for characters that belong to no feature, because the text was truncated or a feature was removed."""

_RUN = re.compile(r"\S+")


@dataclass(frozen=True)
class Piece:
    """A feature with its score, and the characters before it that belong to no feature."""

    text: str
    score: float
    special: bool = False
    unknown: bool = False
    before: str = ""
    alone: bool = False
    """Whether it has no characters in the text: `text` is the tokenizer's spelling."""


@dataclass(frozen=True)
class Section:
    """The pieces of one input, and the characters after the last of them; the name of a single input is empty."""

    name: str
    pieces: Sequence[Piece]
    after: str = ""
    asked: str = ""
    """The word that is asked about, as the description of the input has it after the text."""


def as_written(explanation: Explanation) -> list[Section]:
    """Return the text of each input with its line breaks, for pages."""
    return [
        Section(
            printable(section.name),
            [
                replace(piece, text=(printable if piece.alone else _lines)(piece.text), before=_lines(piece.before))
                for piece in section.pieces
            ],
            _lines(section.after),
            printable(section.asked),
        )
        for section in _cut(explanation)
    ]


def sections_of(explanation: Explanation) -> list[Section]:
    """Return the text of each input with signs for line breaks and for characters that belong to no feature."""
    return [
        Section(printable(section.name), _with_signs(section), asked=printable(section.asked))
        for section in _cut(explanation)
    ]


def spelled(explanation: Explanation | Trace) -> list[str]:
    """Return the name of each feature: its characters in the text, or the tokenizer's spelling."""
    return [
        printable((explanation.text[slice(*span)].strip() if span else "") or feature)
        for feature, span in zip(explanation.features, explanation.offsets, strict=True)
    ]


def section_names(explanation: Explanation) -> list[str]:
    """Return the name of the section of each feature; empty strings if the explanation has one section only."""
    if len(explanation.sections) < 2:
        return [""] * len(explanation.features)
    return [printable(name) for name, count in explanation.sections for _ in range(count)]


def _cut(explanation: Explanation) -> list[Section]:
    """Return the unchanged text of each input. Tokens that share a character are one piece."""
    whole = explanation.whole_characters()
    sections, first = [], 0
    for name, count in whole.sections or (("", len(whole.features)),):
        sections.append(_section(whole, name, range(first, first + count)))
        first += count
    return sections


def _section(whole: Explanation, name: str, features: range) -> Section:
    end = None if whole.sections else 0  # where the text of one of several inputs begins is unknown
    is_spaced = any(whole.features[i][:1].isspace() for i in features if whole.offsets[i] is None)
    pieces: list[Piece] = []
    for i in features:
        span = whole.offsets[i]
        alone = span is None or span[0] == span[1]
        if span is None or alone:
            text, before = _spelling(whole, i, "" if is_spaced or not pieces else " ")
        else:
            start, stop = _without_spaces(whole.text, *span)
            text, before = whole.text[start:stop], "" if end is None else whole.text[end:start]
            if end is not None and start < end:  # in another order than in the text
                before = " "
            end = stop
        pieces.append(Piece(text, whole.scores[i], whole.special[i], whole.unknown[i], before, alone))
    is_located = not all(piece.alone for piece in pieces)
    after, asked = split_asked_word(whole.text[end:]) if is_located and not whole.sections else ("", "")
    return Section(name, pieces, after, asked)


def _spelling(whole: Explanation, i: int, separator: str) -> tuple[str, str]:
    """Return a token in the tokenizer's spelling, without WordPiece's "##", and the space before it."""
    feature = whole.features[i]
    if i and feature.startswith("##") and not whole.special[i] and whole.words[i] == whole.words[i - 1]:
        return feature.removeprefix("##"), ""
    text = feature.lstrip(" ") or feature
    return text, feature[: len(feature) - len(text)] or separator


def _without_spaces(text: str, start: int, stop: int) -> tuple[int, int]:
    """Return the start and end of a part of a text without the spaces around it, unless it is nothing else."""
    part = text[start:stop]
    if not part.strip():
        return start, stop
    return start + len(part) - len(part.lstrip()), stop - len(part) + len(part.rstrip())


def _lines(text: str) -> str:
    return printable(text.replace("\r\n", "\n"), keep="\n")


def _with_signs(section: Section) -> list[Piece]:
    pieces: list[Piece] = []
    is_begun = False
    for piece in section.pieces:
        before = _signs(piece.before)
        if not piece.alone and not is_begun:  # what is before the first feature is not marked
            before, is_begun = "", True
        is_beside = bool(pieces) and (piece.alone or pieces[-1].alone) and piece.special != pieces[-1].special
        before = before or " " * is_beside  # between special tokens and the text
        if pieces and piece.unknown and not before:  # one mark for several in a row
            pieces[-1] = replace(pieces[-1], unknown=False)
        text = piece.text if piece.text.strip() else piece.text.replace(" ", "␣") or "␣"
        pieces.append(replace(piece, text=printable(text), before=before))
    rest = _signs(section.after)
    if LEFT_OUT in rest:
        pieces.append(Piece(LEFT_OUT, 0.0, special=True, before=rest.partition(LEFT_OUT)[0]))
    return pieces


def _signs(text: str) -> str:
    """Return white space as it is, with a sign for line feeds, and a sign for visible characters."""
    marked = _RUN.sub(lambda run: LEFT_OUT if any(letter.isprintable() for letter in run[0]) else "", text)
    return printable(marked, keep="\n").replace("\n", "↵\n")
