"""Texts in the terminal: every word with the colour of its score, or with the score beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text as Line

from .colours import terminal_style
from .wording import number
from .written_text import Piece

UNKNOWN = "[?]"
UNKNOWN_NOTE = f"{UNKNOWN} marks text that is not in the model's vocabulary"


def has_shades(console: Console) -> bool:
    """Return whether a terminal has enough colours to show a score as a shade; with NO_COLOR none has."""
    return not console.no_color and console.color_system in ("truecolor", "256")


def has_unicode(console: Console) -> bool:
    """Return whether the encoding of the output has block characters and arrows."""
    return console.encoding.lower().startswith("utf")


def sign(score: float) -> str:
    """Return the colour name for the sign of a score, for terminals without shades."""
    return "red" if score > 0 else "bright_blue" if score < 0 else ""


def style_of(score: float, scale: float, console: Console) -> str:
    """Return the rich style of a score: a shade, or the colour of its sign."""
    return terminal_style(score, scale) if has_shades(console) else sign(score)


def coloured(text: str, score: float, scale: float, console: Console) -> Line:
    """Return a text in the colours of a score."""
    return Line(text, style=style_of(score, scale, console))


def written_line(pieces: Sequence[Piece], scale: float, console: Console, width: int, numbers: bool = False) -> Line:
    """Return the text with coloured words; with `numbers`, and without shades, every word is followed by its score."""
    pieces = [replace(piece, before=piece.before.replace("\n", " ")) for piece in pieces]  # no text begins a line
    if numbers or not has_shades(console):
        return _flowing([(piece.before, _numbered(piece, scale, console, width)) for piece in pieces], width)
    line = Line()
    for piece in pieces:
        line.append(piece.before, style="dim").append(_word(piece, scale, console))
    return line


def _word(piece: Piece, scale: float, console: Console) -> Line:
    style = _style(piece, scale, console)
    return Line.assemble((piece.text, style), (UNKNOWN * piece.unknown, "dim"))


def _style(piece: Piece, scale: float, console: Console) -> str:
    return style_of(piece.score, scale, console) or ("dim" if piece.special else "")


def _numbered(piece: Piece, scale: float, console: Console, width: int) -> list[Line]:
    """Return a word and its score as parts that fit the width; the number is not broken."""
    style, score = _style(piece, scale, console), f"({number(piece.score)})"
    text = f"{piece.text}{UNKNOWN * piece.unknown}"
    if cell_len(text) + len(score) > width:
        return [*(Line(part, style=style) for part in chop_cells(text, width)), Line(score, style="dim")]
    if has_shades(console):
        return [Line.assemble(_word(piece, scale, console), (score, "dim"))]
    return [Line(f"{text}{score}", style=style)]


def _flowing(words: Sequence[tuple[str, Sequence[Line]]], width: int) -> Line:
    """Return words broken into lines of a width: between words, or within a word that does not fit on a line."""
    lines = [Line()]
    for before, parts in _joined(words):
        lines[-1].append(before, style="dim")
        if lines[-1].cell_len + sum(part.cell_len for part in parts) > width and lines[-1].plain.strip():
            lines[-1].rstrip()
            lines.append(Line())
        for part in parts:
            if lines[-1] and lines[-1].cell_len + part.cell_len > width:
                lines.append(Line())
            lines[-1].append(part)
    return Line("\n").join(lines)


def _joined(words: Sequence[tuple[str, Sequence[Line]]]) -> Iterator[tuple[str, list[Line]]]:
    """Yield words with the pieces that follow them without a space."""
    held: tuple[str, list[Line]] | None = None
    for before, parts in words:
        if held is not None and not before:
            held[1].extend(parts)
            continue
        if held is not None:
            yield held
        held = (before, list(parts))
    if held is not None:
        yield held


def fitted(text: str, width: int) -> str:
    """Return a text that is cut off at the end to fit a width in character cells."""
    return text if cell_len(text) <= width else f"{chop_cells(text, max(1, width - 1))[0]}…"
