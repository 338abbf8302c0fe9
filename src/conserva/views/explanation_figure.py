"""Explanations as a picture file, for papers and slides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.text import displayed
from ..engine.ledger import ENTRIES
from ..results.explanation import Explanation
from .colours import LEDGER, hexadecimal, ink, scale_of, shade
from .matplotlib_figures import drawing, new_figure, save_figure
from .pictures import card, card_svg, gallery, gallery_drawing
from .vector_drawing import UNITS_PER_INCH, Drawing, paint
from .wording import caption, number, scale_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, LINE = 8.0, 0.34  # inches


def draw(explanations: Sequence[Explanation], path: str | Path) -> None:
    """Draw explanations and save them in the format of the file name's extension.

    Texts are drawn one below the other; graphs and images in one row per input, with a column for each method.
    """
    explanations = displayed(explanations)
    if any(explanation.picture is not None for explanation in explanations):
        _draw_pictures(explanations, Path(path))
    else:
        _draw_texts(explanations, path)


@drawing()
def _draw_texts(explanations: Sequence[Explanation], path: str | Path) -> None:
    figure = new_figure(WIDTH, 1.0)
    lines = [_lay_out(figure, explanation) for explanation in explanations]
    heights = [LINE * (len(rows) + 2.5) for rows in lines]
    figure.set_size_inches(WIDTH, sum(heights))
    top = 1.0
    for explanation, rows, height in zip(explanations, lines, heights, strict=True):
        share = height / sum(heights)
        axes = figure.add_axes((0.0, top - share, 1.0, share))
        axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        axes.axis("off")
        _draw_one(axes, explanation, rows)
        top -= share
    save_figure(figure, path)


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


def _lay_out(figure: Any, explanation: Explanation) -> list[list[tuple[int, float, float]]]:
    """Break the tokens into lines; return index, x and width of each token, as measured by the renderer."""
    renderer = figure.canvas.get_renderer()
    rows: list[list[tuple[int, float, float]]] = [[]]
    x = 0.15
    for i, feature in enumerate(explanation.features):
        text = figure.text(0, 0, feature, fontsize=10)
        width = text.get_window_extent(renderer).width / figure.dpi + 0.14
        text.remove()
        if x + width > WIDTH - 0.15 and rows[-1]:
            rows.append([])
            x = 0.15
        rows[-1].append((i, x, width))
        x += width + 0.04
    return rows


def _draw_one(axes: Axes, explanation: Explanation, rows: Sequence[Sequence[tuple[int, float, float]]]) -> None:
    from matplotlib.patches import Rectangle

    scale = scale_of([explanation])
    axes.text(0.15, LINE * 0.75, caption(explanation), fontsize=9, weight="bold", va="bottom")
    for line, row in enumerate(rows, start=1):
        for i, x, width in row:
            background = shade(explanation.scores[i], scale)
            colour = hexadecimal(background)
            axes.add_patch(
                Rectangle((x, LINE * line), width, LINE * 0.84, facecolor=colour, edgecolor="#dddddd", lw=0.4)
            )
            middle = (x + width / 2, LINE * (line + 0.42))
            axes.text(
                *middle,
                explanation.features[i],
                fontsize=10,
                ha="center",
                va="center",
                color=hexadecimal(ink(background)),
            )
    y = LINE * (len(rows) + 1.3)
    axes.text(0.15, y + LINE * 0.75, scale_line(scale), fontsize=7, va="center", color="#595959")
    if explanation.ledger is None:
        return
    sizes = {name: abs(getattr(explanation.ledger, name)) for name in ENTRIES}
    total, x, room = sum(sizes.values()) or 1.0, 0.15, 3.2
    for name, size in sizes.items():
        axes.add_patch(Rectangle((x, y), room * size / total, LINE * 0.4, facecolor=LEDGER[name], lw=0))
        x += room * size / total
    x = 0.15 + room + 0.15
    for name in ENTRIES:
        label = f"■ {name} {number(getattr(explanation.ledger, name))}"
        axes.text(
            x, y + LINE * 0.2, label, fontsize=7.5, va="center", color=LEDGER[name] if name != "biases" else "#8a8a8a"
        )
        x += 1.12
