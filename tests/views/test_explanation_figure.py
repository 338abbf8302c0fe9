"""Pictures of texts: nothing overlaps or leaves the page, the waterfall adds up, and files are the same every time."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conserva.engine.ledger import Ledger
from conserva.results.explanation import ClassScore, Explanation, Sink
from conserva.results.explanations import Comparison, Explanations
from conserva.views import colours, explanation_figure
from conserva.views.figure_text import Letters
from conserva.views.matplotlib_figures import drawing, new_figure
from conserva.views.wording import number
from conserva.views.written_text import Piece
from made_up_explanations import explanation

pytest.importorskip("matplotlib")

TEXT = "The film, a   JOY to watch; overengineered."
SPANS = ((0, 3), (4, 8), (8, 9), (10, 11), (14, 17), (18, 20), (21, 26), (26, 27), (28, 36), (36, 42), (42, 43))


def written(text: str = TEXT, spans: Any = SPANS, **changes: Any) -> Explanation:
    features = [text[first:last] for first, last in spans]
    offsets, special = tuple(spans), (False,) * len(features)
    return explanation(features, **{"text": text, "offsets": offsets, "special": special, **changes})


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn, in order."""
    found: list[Any] = []
    monkeypatch.setattr(explanation_figure, "save_figure", lambda figure, path: found.append(figure))
    return found


@drawing()
def boxes(figure: Any) -> list[tuple[str, Any]]:
    """The texts of a figure and their extents in pixels."""
    renderer = figure.canvas.get_renderer()
    return [(text.get_text(), text.get_window_extent(renderer)) for text in figure.axes[0].texts if text.get_text()]


def check_layout(figure: Any) -> None:
    """No text leaves the page, and no two lie on each other."""
    found = boxes(figure)
    width, height = figure.get_size_inches() * figure.dpi
    for text, box in found:
        assert box.x0 >= -1, text
        assert box.x1 <= width + 1, text
        assert box.y0 >= -1, text
        assert box.y1 <= height + 1, text
    for (one, a), (other, b) in itertools.combinations(found, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        down = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across < 3 or down < 3, (one, other, across, down)


def lossy(**changes: Any) -> Explanation:
    return written(method="gi", ledger=Ledger.of(1.5, -11.2, 0.0, 2.8), **changes)


HOSTILE = {
    "long words": ("x" * 200 + " " + "Donau" * 40, [(0, 200), (201, 401)]),
    "no spaces": ("ab" * 300, [(i, i + 2) for i in range(0, 600, 2)]),
    "right to left": ("שלום עולם مرحبا " * 8, [(i, i + 4) for i in range(0, 120, 5)]),
    "emoji and scripts without a font": ("👩‍👩‍👧🎬 電影很好看 " * 8, [(i, i + 2) for i in range(0, 80, 2)]),
    "line breaks and tabs": ("a\n\nb\tc\r\n" * 3, [(i, i + 1) for i in range(0, 24, 3)]),
    "formulas and markup": (r"$\frac{x}$ <b>&amp; % _ ^ \n {} " * 3, [(i, i + 3) for i in range(0, 90, 3)]),
    "control characters": ("\x1b[31m \x00 \u202e end", [(0, 5), (6, 7), (8, 9), (10, 13)]),
    "marks": ("e\u0301" * 40 + " \u0301", [(0, 80), (81, 82)]),
    "nothing": ("", []),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_laid_out(name: str, figures: list[Any], tmp_path: Path) -> None:
    text, spans = HOSTILE[name]
    one = written(text, spans, target=text[:300], model=text[:40], method=text[:30], unknown=(True,) * len(spans))
    explanation_figure.draw([one, one], tmp_path / "x.png")
    explanation_figure.draw(Comparison((one,), {text[:30] + "?": text[:300]}), tmp_path / "x.png")
    for figure in figures:
        check_layout(figure)


@pytest.mark.parametrize("many", [1, 3, 20])
def test_texts_one_below_the_other(many: int, figures: list[Any], tmp_path: Path) -> None:
    classes = (ClassScore("positive", 1.5, 0.9), ClassScore("negative", -1.5, 0.1))
    ones = [written(classes=classes), lossy(sink=Sink("The", -1.0, 0.2, 0)), written(sections=(("a", 5), ("b", 6)))]
    explanation_figure.draw(Explanations(tuple((ones * 7)[:many])), tmp_path / "x.png")
    check_layout(figures[0])
    texts = [text for text, _ in boxes(figures[0])]
    assert texts.count("= output") == many
    assert texts[0] == "positive: +1.500, probability 90.0% · exact · sentiment"
    assert "classes: positive 90.0%, negative 10.0%" in texts


def test_a_comparison_is_a_table_with_a_row_for_each_method(figures: list[Any], tmp_path: Path) -> None:
    names = [
        "exact",
        "gi",
        "ah+ln",
        "attnlrp",
        "ig:steps=100:baseline=0.5",
        "rollout",
        "a-flow",
        "gae",
        "random:seed=3",
    ]
    rows = [
        written(method=name, ledger=None, scores=tuple(map(abs, written().scores)))
        if name in ("rollout", "a-flow", "gae", "random:seed=3")
        else (lossy() if name == "gi" else written(method=name))
        for name in names
    ]
    explanation_figure.draw(Comparison(tuple(rows), {"chefer": "needs attention maps"}), tmp_path / "x.png")
    check_layout(figures[0])
    found = boxes(figures[0])
    texts = [text for text, _ in found]
    assert texts.count("= output") == 5
    assert texts.count("no ledger") == 4
    assert "needs attention maps" in texts
    assert any("red for, blue against the target; without a sign: rollout" in text for text in texts)
    sums = {number(sum(row.scores)) for row in rows}
    right = next(box.x1 for text, box in found if text == "sum")
    assert {text for text, box in found if text in sums and abs(box.x1 - right) < 4} == sums
    heads = {text: box.x0 for text, box in found if text in ("text", "ledger", "inputs", "The")}
    assert abs(heads["text"] - heads["The"]) < 8
    assert abs(heads["ledger"] - heads["inputs"]) < 8


def bars(figure: Any) -> list[tuple[float, float]]:
    """Start and end of the bars of the waterfalls, in inches; the end is the point."""
    from matplotlib.patches import Polygon

    found = [patch.get_xy() for patch in figure.axes[0].patches if isinstance(patch, Polygon)]
    return [(corners[0][0], corners[2][0]) for corners in found]


def test_bars_begin_where_the_one_before_ends_and_point_the_way(figures: list[Any], tmp_path: Path) -> None:
    one = written(ledger=Ledger.of(2.8, -11.2, 2.0, 9.0), output=2.8)
    explanation_figure.draw([one], tmp_path / "x.png")
    inputs, positions, biases, gap, output = bars(figures[0])
    assert inputs[1] < inputs[0]
    assert positions[0] == inputs[1]
    assert biases[0] == positions[1]
    assert gap[0] == biases[1]
    assert output[0] == inputs[0]  # zero
    assert output[1] == pytest.approx(gap[1])
    unit = (inputs[0] - inputs[1]) / 11.2
    assert (positions[1] - positions[0], biases[1] - biases[0]) == pytest.approx((2.0 * unit, 9.0 * unit))
    texts = [text for text, _ in boxes(figures[0])]
    assert [text for text in texts if re.fullmatch(r"[+-]\d+\.\d{3}", text)] == [
        "-11.200", "+2.000", "+9.000", "+3.000", "+2.800",
    ]  # fmt: skip


def test_ledgers_of_a_comparison_share_their_axis(figures: list[Any], tmp_path: Path) -> None:
    explanation_figure.draw(Comparison((written(), lossy())), tmp_path / "x.png")
    found = bars(figures[0])
    assert len({round(start, 6) for start, _ in (found[0], found[4], found[5], found[9])}) == 1
    assert found[4][1] == pytest.approx(found[9][1])  # both end at the output


def test_words_stand_as_written_and_are_transparent_at_zero(figures: list[Any], tmp_path: Path) -> None:
    from matplotlib.patches import Rectangle

    one = written(scores=(0.0, 1.0, *(0.0,) * 8, -1.0))
    explanation_figure.draw([one], tmp_path / "x.png")
    texts = [text for text, _ in boxes(figures[0])]
    assert [text for text in texts if text in ("The", "film", "JOY", "overengi", "neered", ".")] == [
        "The", "film", "JOY", "overengi", "neered", ".",
    ]  # fmt: skip
    grounds = [patch for patch in figures[0].axes[0].patches if isinstance(patch, Rectangle)]
    found = [tuple(round(255 * part) for part in patch.get_facecolor()[:3]) for patch in grounds]
    assert found == [colours.FOR, colours.AGAINST]
    at = dict(boxes(figures[0]))
    assert at["JOY"].x0 - at["a"].x1 > 1.8 * (at["a"].x0 - at[","].x1)  # three spaces, and one


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_every_format_is_written_and_the_same_every_time(ending: str, tmp_path: Path) -> None:
    for result in (written(), Explanations((written(), lossy())), Comparison((written(), lossy()), {"x": "y"})):
        first, second = (result.save(tmp_path / f"{name}{ending}").read_bytes() for name in ("a", "b"))
        assert first == second
        assert first.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[ending])


def test_many_long_texts_stay_below_the_limit_of_pixels(figures: list[Any], tmp_path: Path) -> None:
    text = "\n" * 60
    ones = [written(text + "a", [(60, 61)])] * 20
    long = [replace(one, text=f"b{one.text[1:]}", features=("b", "a"), offsets=((0, 1), (60, 61))) for one in ones]
    long = [replace(one, scores=(1.0, 2.0), special=(False,) * 2, words=(0, 1), unknown=(False,) * 2) for one in long]
    explanation_figure.draw(long, tmp_path / "x.png")
    height = figures[0].get_size_inches()[1]
    assert height > 300
    assert height * figures[0].dpi <= explanation_figure.MOST_PIXELS + 1


def test_a_comparison_without_results_gives_the_reasons(figures: list[Any], tmp_path: Path) -> None:
    explanation_figure.draw(Comparison((), {"a-flow": "needs attention maps"}), tmp_path / "x.png")
    assert "needs attention maps" in [text for text, _ in boxes(figures[0])]


@drawing()
def test_lines_are_broken_at_spaces_first() -> None:
    letters = Letters(new_figure(1.0, 1.0), 10)
    width = letters.width("some words here") * 1.05
    assert letters.lines("some words here and there", width) == ["some words here", "and there"]
    pieces = [Piece("over", 1.0), Piece("engineered", 2.0), Piece("x", 3.0, before=" ")]
    lines = letters.flowing(pieces, letters.width("overengineered") * 1.05)
    assert [[word.text for word in line] for line in lines] == [["over", "engineered"], ["x"]]
    narrow = letters.flowing(pieces, letters.width("engineered") * 1.05)
    assert [[word.text for word in line] for line in narrow] == [["over"], ["engineered"], ["x"]]
    assert [word.score for line in narrow for word in line] == [1.0, 2.0, 3.0]
    tiny = letters.flowing([Piece("word", 1.0)], 0.01)
    assert [[word.text for word in line] for line in tiny] == [["w"], ["o"], ["r"], ["d"]]
