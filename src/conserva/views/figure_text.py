"""Texts in matplotlib figures, broken into lines by the widths of their letters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from .colours import hexadecimal, ink, shade
from .vector_drawing import INK, NOTE
from .written_text import Piece

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE, BOX = 1.95, 1.55
"""The height of a line and of a word's background, relative to the size of the letters."""

_SPACE = 0.32
"""The width of a space relative to the size of the letters."""

_LONGEST = 120
"""Letters that are measured at once: no line holds more of them."""


@dataclass(frozen=True)
class Word:
    """A piece of a line: its position and width in inches, and its score; None for signs without a score."""

    x: float
    width: float
    text: str
    score: float | None
    dim: bool = False


class Letters:
    """Measures and breaks texts of one font, in inches."""

    def __init__(self, figure: Figure, size: float, weight: Literal["normal", "bold"] = "normal") -> None:
        from matplotlib.font_manager import FontProperties

        self.size, self.weight, self._dpi = size, weight, figure.dpi
        self._font = FontProperties(size=size, weight=weight)
        self._renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]
        self._widths: dict[str, float] = {}

    @property
    def em(self) -> float:
        """The size of the letters in inches."""
        return self.size / 72

    def width(self, text: str) -> float:
        """Return the width of a text."""
        if text not in self._widths:
            measured = self._renderer.get_text_width_height_descent(text, self._font, False)[0] / self._dpi
            self._widths[text] = measured + _SPACE * self.em * (len(text) - len(text.strip()))
        return self._widths[text]

    def lines(self, text: str, width: float) -> list[str]:
        """Return a text broken into lines of a width."""
        pieces = [Piece(word, 0.0, before=" " * bool(i)) for i, word in enumerate(text.split())]
        lines = self.flowing(pieces, width)
        return [" ".join(word.text for word in line) for line in lines]

    def flowing(self, pieces: Sequence[Piece], width: float) -> list[list[Word]]:
        """Return words placed on lines of a width: broken between words, or within a longer word."""
        lines: list[list[Word]] = [[]]
        x = 0.0
        for before, parts in _words(pieces):
            parts = [part for piece in parts for part in self._chopped(piece, width)]
            widths = [self.width(part.text) for part in parts]
            for i, spaces in enumerate(before.replace("↵", "").split("\n")):
                if i:
                    lines.append([])
                    x = 0.0
                for sign in spaces:
                    if sign.isspace():
                        x += _SPACE * self.em
                    else:
                        lines[-1].append(Word(x, self.width(sign), sign, None, dim=True))
                        x += self.width(sign)
            if lines[-1] and x + sum(widths) > width:
                lines.append([])
                x = 0.0
            for part, wide in zip(parts, widths, strict=True):
                if lines[-1] and x + wide > width:
                    lines.append([])
                    x = 0.0
                lines[-1].append(Word(x, wide, part.text, part.score, part.special))
                if part.unknown:
                    x += wide
                    wide = self.width("[?]")
                    lines[-1].append(Word(x, wide, "[?]", None, dim=True))
                x += wide
        return lines

    def _chopped(self, piece: Piece, width: float) -> Iterator[Piece]:
        """Yield parts of a piece that fit the width."""
        text = piece.text
        while len(text) > _LONGEST or self.width(text) > width:
            many = min(len(text), _LONGEST)
            while many > 1 and self.width(text[:many]) > width:
                many = min(many - 1, max(1, int(many * width / self.width(text[:many]))))
            if many == len(text):
                break
            yield replace(piece, text=text[:many], unknown=False)
            text = text[many:]
        yield replace(piece, text=text)


def _words(pieces: Iterable[Piece]) -> Iterator[tuple[str, list[Piece]]]:
    """Yield what is before a word, and its pieces: those without a space between them."""
    held: list[Piece] = []
    for piece in pieces:
        if held and piece.before:
            yield held[0].before, held
            held = []
        held.append(piece)
    if held:
        yield held[0].before, held


def draw_words(
    axes: Axes, lines: Sequence[Sequence[Word]], x: float, top: float, letters: Letters, scale: float
) -> None:
    """Draw lines of words on backgrounds in the colours of their scores, transparent at 0."""
    from matplotlib.patches import Rectangle

    high, em = LINE * letters.em, letters.em
    for i, line in enumerate(lines):
        middle = top + (i + 0.5) * high
        for word in line:
            colour = NOTE if word.dim else INK
            if word.score:
                ground = shade(word.score, scale)
                colour = hexadecimal(ink(ground))
                box = (x + word.x, middle - BOX * em / 2)
                axes.add_patch(Rectangle(box, word.width, BOX * em, facecolor=hexadecimal(ground), lw=0))
            axes.text(x + word.x, middle, word.text, fontsize=letters.size, va="center_baseline", color=colour)


def draw_lines(axes: Axes, lines: Sequence[str], x: float, top: float, letters: Letters) -> None:
    """Draw lines of plain text; text that is not bold is grey."""
    for i, line in enumerate(lines):
        y = top + (i + 0.5) * LINE * letters.em
        style: dict[str, Any] = {"weight": letters.weight, "color": INK if letters.weight == "bold" else NOTE}
        axes.text(x, y, line, fontsize=letters.size, va="center_baseline", **style)
