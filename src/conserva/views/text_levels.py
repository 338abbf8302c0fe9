"""An explained text at several levels of detail, for pages: in tokens, words and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..results.explanation import Explanation
from .colours import scale_of
from .written_text import Piece, Section, as_written

LEVELS = {
    "tokens": lambda explanation: explanation,
    "words": Explanation.merged,
    "sentences": Explanation.sentences,
}
"""The name of each level of detail, and the function that gives an explanation in its features."""


@dataclass(frozen=True)
class Level:
    """A text at a level of detail. Special tokens that are not in the text are left out: `special_tokens` has them."""

    name: str
    unit: str
    """A feature of this level, with its article."""
    scale: float
    sections: Sequence[Section]


def levels(explanation: Explanation) -> list[Level]:
    """Return the text in tokens, words and sentences, without levels that are equal to another.

    An explanation in words, such as a merged one, has no tokens.
    """
    found: list[Level] = []
    seen = set()
    for name, change in LEVELS.items():
        changed = change(explanation)
        if name == "tokens" and _is_in_words(explanation):
            continue
        if name == "sentences":
            changed = replace(changed, unknown=(False,) * len(changed.features))
        if len(changed.features) not in seen and (name != "sentences" or changed.special.count(False) > 1):
            seen.add(len(changed.features))
            sections = [replace(section, pieces=_in_text(changed, section)) for section in as_written(changed)]
            found.append(Level(name, f"a {name[:-1]}", scale_of([changed]), sections))
    return found


def _is_in_words(explanation: Explanation) -> bool:
    """Return whether each feature is a whole word."""
    knows_words = any(word is not None for word in explanation.words)
    return knows_words and len(explanation.merged().features) == len(explanation.features)


def special_tokens(explanation: Explanation) -> list[Piece]:
    """Return the special tokens that are not in the text; none if it is unknown where the other tokens are."""
    pieces = [piece for section in as_written(explanation) for piece in section.pieces]
    return [piece for piece in pieces if piece.special and piece.alone and is_located(explanation)]


def is_located(explanation: Explanation) -> bool:
    """Return whether it is known where in the text the features are."""
    return any(span is not None for span in explanation.offsets)


def _in_text(explanation: Explanation, section: Section) -> list[Piece]:
    if not is_located(explanation):
        return list(section.pieces)
    return [piece for piece in section.pieces if not (piece.special and piece.alone)]
