"""Explanations as a picture file, for papers and slides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .._util.text import displayed
from ..results.explanation import Explanation
from ..results.explanations import Comparison
from .colours import scale_of
from .figure_ledger import draw_waterfall, label_widths, waterfall_height
from .figure_text import LINE, Letters, draw_lines, draw_words
from .ledger_steps import LedgerStep, axis_of, ledger_steps
from .matplotlib_figures import drawing, new_figure, save_figure
from .pictures import card, card_svg, gallery, gallery_drawing
from .terminal_text import UNKNOWN_NOTE
from .vector_drawing import UNITS_PER_INCH, Drawing, paint
from .wording import (
    caption,
    classes_line,
    colours_line,
    ledger_line,
    ledger_note,
    ledger_notes,
    number,
    outcome,
    scales_note,
    sink_line,
    windows_line,
)
from .written_text import Section, sections_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, EDGE, GAP = 8.0, 0.15, 0.16
"""The width of the figure, its margins, and the space between blocks and columns, in inches."""

LEDGER_WIDTH, SMALL_LEDGER = 5.0, 2.6
NAMES, SUMS = 1.0, 0.62
"""The widths of columns in inches: the waterfall below a text and beside one, names of methods, sums."""

MOST_PIXELS = 60_000
"""The maximum height of a picture in pixels, below the limit of matplotlib: higher ones have a lower resolution."""


def draw(explanations: Sequence[Explanation], path: str | Path) -> None:
    """Draw explanations and save them in the format of the file name's extension.

    Texts are drawn one below the other, and a comparison of methods as a table with a row for each; graphs and images
    in one row per input, with a column for each method.
    """
    if any(explanation.picture is not None for explanation in explanations):
        _draw_pictures(displayed(explanations), Path(path))
    else:
        _draw_texts(explanations, path)


def _draw_pictures(explanations: Sequence[Explanation], path: Path) -> None:
    alone = len(explanations) == 1
    if path.suffix == ".svg":
        path.write_text(card_svg(explanations[0]) if alone else gallery(explanations), encoding="utf-8")
        return
    _paint(card(explanations[0]) if alone else gallery_drawing(explanations), path)


@drawing()
def _paint(drawn: Drawing, path: Path) -> None:
    figure = new_figure(drawn.width / UNITS_PER_INCH, drawn.height / UNITS_PER_INCH)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, drawn.width), ylim=(drawn.height, 0))
    axes.axis("off")
    paint(drawn, axes)
    save_figure(figure, path)


@drawing()
def _draw_texts(explanations: Sequence[Explanation], path: str | Path) -> None:
    figure = new_figure(WIDTH, 1.0)
    sheet = _Sheet(figure)
    if isinstance(explanations, Comparison):
        _compare(sheet, list(explanations), displayed(explanations.refused))
    else:
        for explanation in explanations:
            _explain(sheet, explanation)
    height = sheet.y + EDGE
    figure.set_size_inches(WIDTH, height)
    figure.set_dpi(min(figure.dpi, MOST_PIXELS / height))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    for part in sheet.parts:
        part(axes)
    save_figure(figure, path)


@dataclass
class _Sheet:
    """What is drawn from top to bottom; `y` is the top of the next part, in inches."""

    figure: Figure
    y: float = EDGE
    parts: list[Callable[[Axes], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = {"text": 10.0, "note": 7.5, "small": 6.5}
        self.letters = {name: Letters(self.figure, size) for name, size in sizes.items()}
        self.letters["title"] = Letters(self.figure, 9.5, "bold")

    def lines(self, text: str, x: float = EDGE, width: float = WIDTH - 2 * EDGE, size: str = "note") -> float:
        """Draw a text, if it is not empty, broken into lines; return its height."""
        if not text:
            return 0.0
        letters, y = self.letters[size], self.y
        lines = letters.lines(text, width)
        self.parts.append(lambda axes: draw_lines(axes, lines, x, y, letters))
        return len(lines) * LINE * letters.em

    def sections(self, sections: Sequence[Section], scale: float, x: float, width: float) -> float:
        """Draw the coloured texts of an explanation; return their height."""
        begin, letters = self.y, self.letters["text"]
        for section in sections:
            self.y += self.lines(section.name, x, width)
            lines, y = letters.flowing(section.pieces, width), self.y
            self.parts.append(
                lambda axes, lines=lines, y=y: draw_words(axes, lines, x, y, letters, scale)  # type: ignore[misc]
            )
            self.y += len(lines) * LINE * letters.em
        height, self.y = self.y - begin, begin
        return height

    def waterfall(
        self, steps: Sequence[LedgerStep], beside: Sequence[Sequence[LedgerStep]], x: float, width: float, size: str
    ) -> float:
        """Draw a waterfall on the axis of those `beside` it, itself included; return its height."""
        letters, y = self.letters[size], self.y
        reach, labels = axis_of([step for ledger in beside for step in ledger]), label_widths(beside, letters)
        self.parts.append(lambda axes: draw_waterfall(axes, steps, reach, (x, y, width), labels, letters))
        return waterfall_height(steps, letters)


def _explain(sheet: _Sheet, raw: Explanation) -> None:
    """Add an explanation: caption, coloured text, legend and ledger."""
    explanation = displayed(raw)
    scale = scale_of([explanation])
    sheet.y += sheet.lines(caption(explanation), size="title")
    for note in (classes_line(explanation), windows_line(explanation)):
        sheet.y += sheet.lines(note)
    sheet.y += sheet.sections(sections_of(raw), scale, EDGE, WIDTH - 2 * EDGE)
    unknown = UNKNOWN_NOTE if any(explanation.unknown) else ""
    for note in (unknown, colours_line(explanation, scale), sink_line(explanation)):
        sheet.y += sheet.lines(note)
    if explanation.ledger is None:
        sheet.y += sheet.lines(ledger_line(explanation))
    else:
        steps = ledger_steps(explanation.ledger, explanation.output)
        sheet.y += 0.05 + sheet.waterfall(steps, [steps], EDGE, LEDGER_WIDTH, "note")
        sheet.y += sheet.lines(ledger_note(explanation))
    sheet.y += GAP


def _compare(sheet: _Sheet, raw: Sequence[Explanation], refused: Mapping[str, str]) -> None:
    """Add a comparison as a table: method, coloured text, sum, ledger. All ledgers have the same axis."""
    explanations = [displayed(explanation) for explanation in raw]
    if explanations:
        sheet.y += sheet.lines(outcome(explanations[0]), size="title")
        for note in (classes_line(explanations[0]), windows_line(explanations[0])):
            sheet.y += sheet.lines(note)
    ledgers = [None if one.ledger is None else ledger_steps(one.ledger, one.output) for one in explanations]
    beside = [steps for steps in ledgers if steps is not None]
    right = WIDTH - EDGE
    text = EDGE + NAMES + GAP
    ledger = right - SMALL_LEDGER if beside else right + GAP
    sums = ledger - GAP
    wide = sums - SUMS - GAP - text
    headings = [(EDGE, "method"), (text, "text"), (sums - sheet.letters["small"].width("sum"), "sum")]
    headings += [(ledger, "ledger")] if beside else []
    sheet.y += max(sheet.lines(title, x, SMALL_LEDGER, "small") for x, title in headings)
    for one, shown, steps in zip(raw, explanations, ledgers, strict=True):
        _rule(sheet)
        total = number(sum(shown.scores))
        heights = [
            sheet.lines(shown.method, EDGE, NAMES),
            sheet.sections(sections_of(one), scale_of([shown]), text, wide),
            sheet.lines(total, sums - sheet.letters["note"].width(total), WIDTH),
        ]
        if steps is not None:
            heights.append(sheet.waterfall(steps, beside, ledger, SMALL_LEDGER, "small"))
        elif beside:
            heights.append(sheet.lines("no ledger", ledger, SMALL_LEDGER, "small"))
        sheet.y += max(heights) + 0.04
    for method, reason in refused.items():
        _rule(sheet)
        sheet.y += max(sheet.lines(method, EDGE, NAMES), sheet.lines(reason, text, right - text)) + 0.04
    _rule(sheet)
    unknown = UNKNOWN_NOTE if any(any(one.unknown) for one in explanations) else ""
    for note in (*ledger_notes(explanations), unknown, scales_note(explanations)):
        sheet.y += sheet.lines(note)


def _rule(sheet: _Sheet) -> None:
    """Draw a line between rows."""
    y = sheet.y + 0.02
    sheet.parts.append(lambda axes: axes.plot([EDGE, WIDTH - EDGE], [y, y], color="#cccccc", lw=0.5))
    sheet.y += 0.05
