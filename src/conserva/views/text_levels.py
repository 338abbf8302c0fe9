"""An explained text as it was written, in pieces: features with their scores, and the characters between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .._util.text import printable
from ..results.explanation import Explanation
from .colours import scale_of

LEVELS = {
    "tokens": lambda explanation: explanation,
    "words": Explanation.merged,
    "sentences": Explanation.sentences,
}
"""The name of each level of detail, and the function that gives an explanation in its features."""


@dataclass(frozen=True)
class Piece:
    """A part of a text; without a score, characters that belong to no feature."""

    text: str
    score: float | None = None
    special: bool = False
    unknown: bool = False
    alone: bool = False
    """Whether it is a feature without characters of its own in the text, shown in the model's spelling."""


@dataclass(frozen=True)
class Level:
    """A text at a level of detail: for each of its sections the name, None if there is only one, and the pieces."""

    name: str
    unit: str
    """A feature of this level, with its article."""
    scale: float
    sections: Sequence[tuple[str | None, Sequence[Piece]]]


def levels(explanation: Explanation) -> list[Level]:
    """Return the text in tokens, words and sentences, without levels that are equal to a finer one."""
    found: list[Level] = []
    seen = set()
    for name, change in LEVELS.items():
        changed = change(explanation)
        if name == "sentences":
            changed = replace(changed, unknown=(False,) * len(changed.features))
        if len(changed.features) not in seen and (name != "sentences" or changed.special.count(False) > 1):
            seen.add(len(changed.features))
            found.append(Level(name, f"a {name[:-1]}", scale_of([changed]), list(_sections(changed))))
    return found


def spelled(explanation: Explanation) -> list[str]:
    """Return the name of each feature, as it is written in the text if it has characters there."""
    return [
        printable((explanation.text[slice(*span)].strip() if span else "") or feature)
        for feature, span in zip(explanation.features, explanation.offsets, strict=True)
    ]


def is_located(explanation: Explanation) -> bool:
    """Return whether it is known where in the text the features are."""
    return any(span is not None for span in explanation.offsets)


def apart(explanation: Explanation) -> list[Piece]:
    """Return the special features that are not in the text, if it is known where the others are."""
    return [_alone(explanation, i) for i in range(len(explanation.features)) if _is_apart(explanation, i)]


def unread(explanation: Explanation) -> str:
    """Return the end of a text that the model did not read, because the text was truncated."""
    spans = [span for span in explanation.offsets if span is not None]
    if not spans or explanation.sections:
        return ""
    return printable(_lines(explanation.text[max(end for _, end in spans) :]), keep="\n").rstrip()


def _sections(explanation: Explanation) -> Iterator[tuple[str | None, list[Piece]]]:
    first = 0
    for name, count in explanation.sections or ((None, len(explanation.features)),):
        shown = None if name is None else printable(name)
        yield shown, list(_pieces(explanation, range(first, first + count)))
        first += count


def _pieces(explanation: Explanation, features: range) -> Iterator[Piece]:
    """Yield the features of a section, and the characters between them."""
    end: int | None = None if explanation.sections else 0
    for i in features:
        span = explanation.offsets[i]
        if span is None:
            if not _is_apart(explanation, i):
                yield _alone(explanation, i)
            continue
        start = span[0] if end is None else max(span[0], end)
        if end is not None and end < start:
            yield Piece(_written(explanation, end, start))
        end = max(start, span[1])
        if start == end:  # its characters belong to the token before, as with the bytes of an emoji
            yield _alone(explanation, i)
        else:
            yield Piece(
                _written(explanation, start, end),
                explanation.scores[i],
                explanation.special[i],
                explanation.unknown[i],
            )


def _alone(explanation: Explanation, i: int) -> Piece:
    name = printable(explanation.features[i])
    return Piece(name, explanation.scores[i], explanation.special[i], explanation.unknown[i], alone=True)


def _is_apart(explanation: Explanation, i: int) -> bool:
    return explanation.special[i] and explanation.offsets[i] is None and is_located(explanation)


def _written(explanation: Explanation, start: int, end: int) -> str:
    return printable(_lines(explanation.text[start:end]), keep="\n")


def _lines(text: str) -> str:
    """Return a text whose lines end in the line feed alone."""
    return text.replace("\r\n", "\n")
