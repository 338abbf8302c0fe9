"""Pictures of explained graphs and images: a card with caption and ledger, or a row with one picture per method."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from markupsafe import Markup

from .._util.text import displayed
from ..engine.ledger import ENTRIES
from ..errors import Error
from ..results.explanation import Explanation
from .colours import hexadecimal, ink, scale_of, shade
from .molecule import molecule_drawing
from .patch_overlay import overlay_drawing
from .picture_ledger import ROW, ledger_parts
from .picture_nodes import kind_of, label, virtual_node
from .superpixels import superpixels_drawing
from .vector_drawing import NOTE, Drawing, Inset, Shape, TextLine, rectangle
from .vector_drawing import svg as drawn
from .wording import caption, colours_line, is_signed, ledger_line, number, outcome, scales_note

KINDS: dict[str, Callable[[Explanation, float | None], Drawing]] = {
    "molecule": molecule_drawing,
    "superpixels": superpixels_drawing,
    "image": overlay_drawing,
}
ZOOM, NARROWEST = 0.6, 150.0
"""Scale factor of pictures in a row, and the minimum width of a panel, so that method names fit below."""

ACROSS = 1640
"""The width at which a single row of pictures wraps; with several inputs, rows do not wrap."""

_CARD = 460.0  # minimum width of a card, so that caption and ledger fit
_EDGE, _GAP, _LETTER = 16.0, 14.0, 0.6  # the last: the width of a letter relative to the font size


def svg(explanation: Explanation, scale: float | None = None, *, in_page: bool = False) -> Markup:
    """Return the picture of an explanation as SVG; the full colours are for scores of size `scale`, by default the
    largest.
    """
    explanation = displayed(explanation)
    return drawn(_coloured(explanation, scale or scale_of([explanation])), label(explanation), in_page=in_page)


def _coloured(explanation: Explanation, scale: float | None) -> Drawing:
    return KINDS[kind_of(explanation)](explanation, scale)


# One row per input


def row_of_pictures(explanations: Sequence[Explanation]) -> Markup:
    """Return a row of pictures of one input as SVG: the input, then one per method, each with its own scale."""
    rows = _rows(explanations)
    if len(rows) != 1:
        raise Error(
            f"Got explanations of {len(rows)} inputs, targets or models, but a row shows a single one: use gallery(), "
            "which draws a row for each."
        )
    return gallery(explanations)


def gallery(explanations: Sequence[Explanation]) -> Markup:
    """Return a row of pictures for each input as SVG; each method has its own column."""
    explanations = displayed(explanations)
    return drawn(gallery_drawing(explanations), " ".join(label(explanation) for explanation in explanations))


def gallery_drawing(explanations: Sequence[Explanation]) -> Drawing:
    """Return the drawing of `gallery`."""
    methods = list(dict.fromkeys(explanation.method for explanation in explanations))
    rows = [(row, _panels(row, methods)) for row in _rows(explanations)]
    wide = max(panel.width for _, panels in rows for panel in panels.values())
    columns = len(methods) + 1
    if len(rows) == 1:
        columns = max(1, min(columns, int(ACROSS // (wide + _GAP))))
    width = columns * (wide + _GAP) - _GAP
    parts: list[Shape | TextLine | Inset] = []
    top = _EDGE
    for row, panels in rows:
        first = next(iter(row.values()))
        parts.append(TextLine(_EDGE, top + 12, _cut(f"{outcome(first)} · {first.text}", width, 12), bold=True))
        top += 22
        high = max(panel.height for panel in panels.values())
        for index, panel in panels.items():
            down, right = divmod(index, columns)
            middle = (wide - panel.width) / 2
            parts.append(Inset(_EDGE + middle + right * (wide + _GAP), top + down * (high + _GAP), 1, panel))
        top += (max(panels) // columns + 1) * (high + _GAP) + 6
    for line in _wrapped(scales_note(explanations, "picture"), width, 10):
        parts.append(TextLine(_EDGE, top + 2, line, 10, NOTE))
        top += 13
    return Drawing(width + 2 * _EDGE, top + 3, tuple(parts))


def _panels(row: Mapping[str, Explanation], methods: Sequence[str]) -> dict[int, Drawing]:
    """Return column -> panel: the input in column 0, then the methods."""
    coloured = {
        1 + methods.index(method): _panel(explanation, scale_of([explanation])) for method, explanation in row.items()
    }
    return {0: _panel(next(iter(row.values())), None), **coloured}


def _rows(explanations: Iterable[Explanation]) -> list[dict[str, Explanation]]:
    """Return method -> explanation for each input."""
    rows: list[dict[str, Explanation]] = []
    for explanation in explanations:
        for row in rows:
            first = next(iter(row.values()))
            if explanation.method not in row and all(
                getattr(explanation, name) == getattr(first, name) for name in ("text", "picture", "target", "model")
            ):
                row[explanation.method] = explanation
                break
        else:
            rows.append({explanation.method: explanation})
    if not rows:
        raise Error("Got no explanation to draw: give at least one.")
    return rows


def _panel(explanation: Explanation, scale: float | None) -> Drawing:
    """Return a picture with the method's name below, or the uncoloured input if `scale` is None."""
    picture = _coloured(explanation, scale)
    wide, high = max(NARROWEST, ZOOM * picture.width), ZOOM * picture.height
    middle, name = wide / 2, "input" if scale is None else _cut(explanation.method, wide, 12)
    parts: list[Shape | TextLine | Inset] = [Inset(middle - ZOOM * picture.width / 2, 0, ZOOM, picture)]
    parts.append(TextLine(middle, high + 14, name, anchor="middle"))
    if scale is not None:
        reach = f"±{number(scale)[1:]}" if is_signed(explanation) else f"0 to {number(scale)}"
        notes = [reach, *(f"{node} {number(score)}" for node, score in virtual_node(explanation))]
        parts.append(TextLine(middle, high + 28, " · ".join(notes), 9.5, NOTE, "middle"))
    return Drawing(wide, high + 32, tuple(parts))


# A single explanation


def card(explanation: Explanation) -> Drawing:
    """Return a picture with its caption, colour scale, virtual node and ledger."""
    scale = scale_of([explanation])
    picture = _coloured(explanation, scale)
    width = max(picture.width, _CARD)
    lines = [(line, 12.0, True) for line in _wrapped(caption(explanation), width, 12)]
    lines += [(line, 10.0, False) for line in _wrapped(explanation.text, width, 10)]
    parts: list[Shape | TextLine | Inset] = []
    y = _EDGE
    for line, size, bold in lines:
        y += size * 1.35
        parts.append(TextLine(_EDGE, y, line, size, NOTE if not bold else "#1a1a1a", bold=bold))
    parts.append(Inset(_EDGE + (width - picture.width) / 2, y + 8, 1, picture))
    y += picture.height + 24
    parts += [*_scale_bar(scale, y, is_signed(explanation)), *_chips(explanation, scale, y)]
    y += 34
    if explanation.ledger is None:
        parts.append(TextLine(_EDGE, y + 4, ledger_line(explanation), 10, NOTE))
        return Drawing(width + 2 * _EDGE, y + 18, tuple(parts))
    parts += ledger_parts(explanation.ledger, explanation.output, _EDGE, y, width)
    return Drawing(width + 2 * _EDGE, y + ROW * (len(ENTRIES) + 1) + _EDGE, tuple(parts))


def card_svg(explanation: Explanation) -> Markup:
    """Return the drawing of `card` as SVG."""
    explanation = displayed(explanation)
    colours = colours_line(explanation, scale_of([explanation]))
    return drawn(card(explanation), f"{label(explanation)} {colours}. {ledger_line(explanation)}.")


def _scale_bar(scale: float, y: float, signed: bool) -> Iterator[Shape | TextLine]:
    steps, wide, left = 41, 3.0, _EDGE + 88
    low = -1 if signed else 0
    yield TextLine(left - 6, y + 9, f"against {number(-scale)}" if signed else "0", 10, NOTE, "end")
    for step in range(steps):  # each rectangle extends to the end of the bar, so that no seams show
        colour = hexadecimal(shade(low + (1 - low) * step / (steps - 1), 1))
        yield Shape(rectangle(left + step * wide, y, (steps - step) * wide, 10), colour)
    yield Shape(rectangle(left, y, steps * wide, 10), stroke="#cccccc", width=0.6)
    yield TextLine(left + steps * wide + 6, y + 9, f"{number(scale)}{' for' if signed else ''}", 10, NOTE)


def _chips(explanation: Explanation, scale: float, y: float) -> Iterator[Shape | TextLine]:
    left = _EDGE + 300
    for name, score in virtual_node(explanation):
        background = shade(score, scale)
        text = f"{name} {number(score)}"
        wide = len(text) * 11 * _LETTER + 14
        yield Shape(rectangle(left, y - 5, wide, 20), hexadecimal(background), "#cccccc", 0.6)
        yield TextLine(left + wide / 2, y + 9, text, 11, hexadecimal(ink(background)), "middle")
        left += wide + 8


def _cut(text: str, width: float, size: float) -> str:
    most = int(width / (size * _LETTER))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _wrapped(text: str, width: float, size: float) -> list[str]:
    return textwrap.wrap(text, int(width / (size * _LETTER))) or [""]
