"""The text of an explanation as it was written, cut into its features."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .._util.text import printable
from ..results.explanation import Explanation

LEFT_OUT = "…"
"""Stands for characters that have no feature, because the text was truncated or a feature was removed."""

_RUN = re.compile(r"\S+")


@dataclass(frozen=True)
class Piece:
    """A part of the text with its score: a feature, or several that share characters, with the sum of their scores."""

    text: str
    score: float
    special: bool = False
    unknown: bool = False
    before: str = ""
    """What is between the previous piece and this one, such as a space."""


@dataclass(frozen=True)
class Section:
    """The pieces of one input; the name of a single input is empty."""

    name: str
    pieces: tuple[Piece, ...]


def sections_of(explanation: Explanation) -> list[Section]:
    """Return the text, by inputs, in which features are spelled as in the text where their offsets are known.

    Offsets are indices of the text as it was given: call this before `displayed`, which changes the lengths of texts.
    All strings that are returned are printable.
    """
    sections, first = [], 0
    for name, count in explanation.sections or (("", len(explanation.features)),):
        pieces = tuple(map(_printable, _pieces(explanation, range(first, first + count))))
        sections.append(Section(printable(name), pieces))
        first += count
    return sections


def _pieces(explanation: Explanation, part: range) -> Iterator[Piece]:
    text, last, start, end = explanation.text, None, 0, None
    bare = [explanation.features[i] for i in part if explanation.offsets[i] is None and not explanation.special[i]]
    separator = "" if any(feature[:1].isspace() for feature in bare) else " "
    for i in part:
        span, score = explanation.offsets[i], explanation.scores[i]
        if span is None or span[0] == span[1]:
            piece = _spelled(explanation, i, separator if last else "")
        elif last is not None and end is not None and start <= span[0] < end:  # characters of several tokens
            end = max(end, span[1])
            last = replace(
                last,
                text=text[start:end],
                score=last.score + score,
                special=last.special and explanation.special[i],
                unknown=last.unknown or explanation.unknown[i],
            )
            continue
        else:
            written = text[span[0] : span[1]].rstrip() or text[span[0] : span[1]]
            word = written.lstrip() or written
            between = "" if end is None else " " if span[0] < end else _between(text[end : span[0]])
            start, end = span[0] + len(written) - len(word), span[0] + len(written)
            before = between + written[: len(written) - len(word)]
            piece = Piece(word, score, explanation.special[i], explanation.unknown[i], before)
        if last is not None:
            spelled = explanation.offsets[i] is None or explanation.offsets[i - 1] is None
            if not piece.before and spelled and last.special != piece.special:
                piece = replace(piece, before=" ")
            if piece.unknown and not piece.before:  # one mark for several in a row
                last = replace(last, unknown=False)
            yield last
        last = piece
    if last is not None:
        yield last
    if end is not None and not explanation.sections and LEFT_OUT in (rest := _between(text[end:])):
        yield Piece(LEFT_OUT, 0.0, special=True, before=rest.partition(LEFT_OUT)[0])


def _spelled(explanation: Explanation, i: int, separator: str) -> Piece:
    """Return a feature in the tokenizer's spelling, without the "##" of WordPiece."""
    feature, special = explanation.features[i], explanation.special[i]
    continues = i > 0 and not special and feature.startswith("##") and explanation.words[i] == explanation.words[i - 1]
    word = feature.removeprefix("##") if continues else feature.lstrip(" ") or feature
    before = "" if continues else feature[: len(feature) - len(word)] or separator
    return Piece(word, explanation.scores[i], special, explanation.unknown[i], before)


def _between(text: str) -> str:
    """Return white space as it is, and a sign for visible characters that are left out."""
    return _RUN.sub(lambda run: LEFT_OUT if any(letter.isprintable() for letter in run[0]) else "", text)


def _printable(piece: Piece) -> Piece:
    text = piece.text if piece.text.strip() else piece.text.replace(" ", "␣")
    before = printable(piece.before, keep="\n").replace("\n", "↵\n")
    return replace(piece, text=printable(text) or "␣", before=before)
