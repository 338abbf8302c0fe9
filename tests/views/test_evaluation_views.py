"""Views of an evaluation: every number is there and whole, and nothing is claimed that the intervals do not carry."""

import dataclasses
import io
import re
from pathlib import Path

import pytest
from matplotlib.image import imread
from rich.console import Console

from browser import Pages, check_light_and_dark, in_a_browser
from conserva.evaluation.comparison import Interval
from conserva.evaluation.result import ADDITIONAL, METRICS, Evaluation
from conserva.views import curves, evaluation_terminal, evaluation_wording
from conserva.views.evaluation_page import page as report
from conserva.views.evaluation_wording import summary
from made_up_evaluations import AUAC, NAMES, REFUSED, WIDTH, evaluation, read, result, with_additional


def test_json_gives_the_same_evaluation_back() -> None:
    one = evaluation()
    assert Evaluation.from_json(one.to_json()) == one


# The terminal


def printed(one: Evaluation, width: int, **settings: object) -> str:
    out = io.StringIO()
    evaluation_terminal.show(one, Console(file=out, width=width, **settings))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 140])
def test_table_holds_every_number_in_one_piece(width: int) -> None:
    one = evaluation()
    text = printed(one, width, color_system=None)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "\x1b" not in text
    for method in one.methods:
        rows = [line for line in lines if line.startswith(f"{method.method} ")]
        assert len(rows) == {60: 3, 80: 2, 140: 1}[width]
        whole = " ".join(rows)
        for metric in METRICS:
            assert re.sub(r"\b0\.", ".", evaluation_wording.interval(getattr(method, metric))) in whole
        assert (".987" in whole) == (method.method != "a-last")
        assert ".123" in whole
    flat = " ".join(text.split())
    for part in (
        "sentiment on sst2 <validation> · 30 samples · accuracy 83.5%",
        "steps 10 · special tokens removed too",
    ):
        assert part in flat
    assert f"a-flow does not apply: {REFUSED['a-flow']}" in flat


@pytest.mark.parametrize("width", [80, 140])
def test_the_best_method_is_bold_and_yardsticks_stand_apart(width: int) -> None:
    one = evaluation()
    text = printed(one, width, force_terminal=True, color_system="truecolor")
    bold = [found for found in re.findall(r"\x1b\[1m\s*([^\x1b]*)\x1b", text) if "[" in found]
    best = next(method for method in one.methods if method.method == "exact")
    expected = [re.sub(r"\b0\.", ".", evaluation_wording.interval(getattr(best, metric))) for metric in METRICS]
    assert [found.strip() for found in bold] == expected
    rows = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
    places = [i for i, line in enumerate(rows) if line.startswith("leave-one-out")]
    assert all(set(rows[i - 1].strip()) == {"─"} for i in places)
    assert re.search(r"\x1b\[2mleave-one-out", text)


def test_without_bold_the_best_is_marked() -> None:
    marked = [line for line in printed(evaluation(), 140, color_system=None).splitlines() if "]*" in line]
    assert len(marked) == 1
    assert marked[0].startswith("exact")
    assert marked[0].count("]*") == 5


def test_headings_say_which_direction_is_better() -> None:
    text = printed(evaluation(), 140, color_system=None)
    assert "AUAC ↑" in text
    assert "AU-MSE ↓" in text
    assert "sufficiency ↓" in text


def test_a_long_name_gives_way_and_numbers_do_not() -> None:
    one = evaluation(("exact",))
    method = dataclasses.replace(one.methods[0], method="ig:" + "very-long-" * 8)
    text = printed(dataclasses.replace(one, methods=(method,), pairs=()), 60, color_system=None)
    assert ".917 [.889, .945]" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.91234, "0.912"), (0.9999, "1.00"), (7.818, "7.82"), (19.34, "19.3"), (1234.5, "1234"), (-0.0123, "-0.012"),
     (3e-7, "3e-07"), (0.0, "0.000"), (None, "-"), (2.5e9, "2.50e+09")],
)  # fmt: skip
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert evaluation_wording.short(value) == text


def test_an_interval_ends_at_one_place_and_shows_its_side_of_zero() -> None:
    assert evaluation_wording.interval(Interval(9.76, 9.2, 10.34)) == "9.8 [9.2, 10.3]"
    assert evaluation_wording.interval(Interval(-0.01, -0.0196, -0.0004)) == "-0.010 [-0.020, -0.000]"


# Figures


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
@pytest.mark.parametrize("draw", [curves.draw_curves, curves.draw_conservation])
def test_figures_are_written(tmp_path: Path, ending: str, draw) -> None:
    path = tmp_path / f"figure{ending}"
    draw(evaluation(), path)
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(start)
    if ending == ".png":
        assert len({tuple(pixel) for pixel in imread(path)[::3, ::3].reshape(-1, 4).round(2)}) > 100


@pytest.mark.parametrize("names", [("exact",), ("random", "exact"), NAMES[:5]])
def test_figures_of_few_methods(tmp_path: Path, names: tuple[str, ...]) -> None:
    one = evaluation(names)
    curves.draw_curves(one, tmp_path / "curves.png")
    curves.draw_conservation(one, tmp_path / "sums.png")
    for name in ("curves.png", "sums.png"):  # drawn, and not a blank sheet
        assert len({tuple(pixel) for pixel in imread(tmp_path / name)[::3, ::3].reshape(-1, 4).round(2)}) > 20


def test_sixteen_lines_are_all_different() -> None:
    known = [*curves.STYLES, "ig:steps=3", "own", "random", "random:seed=1", "leave-one-out"]
    methods = [dataclasses.replace(result("exact"), method=name, reference=name == "leave-one-out") for name in known]
    looks = curves._lines(methods)
    assert len({(look["color"], look["linestyle"]) for look in looks.values()}) == len(known)
    assert looks["random"]["color"] == looks["random:seed=1"]["color"] == curves.GREY
    assert looks["leave-one-out"]["color"] == curves.INK
    assert looks["ah+ln"]["linewidth"] == max(look["linewidth"] for look in looks.values())


def test_figures_in_a_page_hold_names_and_numbers_as_text() -> None:
    one = evaluation()
    lines, sums = curves.curves_svg(one), curves.conservation_svg(one)
    for svg in (lines, sums):
        assert svg.startswith("<svg ")
        assert "&lt;b&gt;&amp;$x_1$&lt;/b&gt;" in svg
        assert "http" not in svg
        assert curves.INK not in svg  # the ink is the page's, so that it can be dark
    assert "0.912" in lines  # three digits, although lengths are cut to two
    assert "correlation 0.987 · slope 0.904" in sums
    assert "the sums do not vary" in sums
    assert sums.count("own y axis") == 3  # a-last, and the two random orders
    names = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (lines, sums)]
    assert not names[0] & names[1]
    for svg, known in zip((lines, sums), names, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', svg)) <= known


# The page


def test_page_holds_everything_and_loads_nothing() -> None:
    one = evaluation()
    page = report(one)
    found = read(page)
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    assert not found.tags & {"script", "img", "image", "link", "iframe", "object", "b"}
    assert "default-src 'none'" in page
    for method in one.methods:
        assert method.method in found.text
        for metric in METRICS:
            assert evaluation_wording.interval(getattr(method, metric)) in found.text
    for text in (*REFUSED, *REFUSED.values(), "sst2 <validation>", "sha256:0123", "[MASK]", "2.11", "83.5%", "0.987"):
        assert text in found.text
    assert page.count("<svg ") == 4  # two, for wide and for narrow pages


@pytest.mark.usefixtures("without_figures")
def test_differences_are_to_the_best_of_the_column_whichever_way_round_they_are_held() -> None:
    page = report(evaluation())
    section = page[page.index('<section id="differences"') : page.index('<section id="conservation"')]
    rows = dict(re.findall(r'<th scope="row" dir="auto">(.*?)</th>(.*)</tr>', section))
    assert "minus exact" in section
    for name in ("gi", "ah+ln", "a-last", "random"):
        mean = AUAC[name] - AUAC["exact"]
        expected = evaluation_wording.interval(Interval(mean, mean - WIDTH, mean + WIDTH))
        first = rows[name].partition("</td>")[0]
        assert re.sub(r"<[^>]*>", "", first) == expected
    assert rows["exact"].count("best") == 5
    assert rows["ah+ln"].startswith('<td class="low">')  # 0 is inside
    assert rows["gi"].startswith("<td><strong>")


def test_no_difference_is_claimed_whose_interval_includes_zero() -> None:
    told = summary(evaluation(width=0.004))  # exact leads ah+ln by .005
    assert "“exact” ranks first (AUAC 0.917" in told
    assert "It is better than the second, “ah+ln” (0.912), by 0.005, 95 % interval 0.001 to 0.009." in told
    assert "It is better than a random order (0.620), by 0.297" in told
    open_ = summary(evaluation(width=0.008))
    assert "These samples do not show that it is better than the second, “ah+ln” (0.912)" in open_
    assert "It is better than the second" not in open_
    assert "not shown to be better than the second, “ah+ln”" in open_
    blind = summary(evaluation(width=0.5))
    assert "do not show that it is better than the second" in blind
    assert "It is not shown to be better than a random order (0.620)" in blind
    assert "It is better than" not in blind
    assert "Nor do they show a difference to “gi”" in blind
    assert "leave-one-out" not in blind  # a yardstick is not in the running


@pytest.mark.usefixtures("without_figures")
def test_what_was_not_compared_is_not_claimed() -> None:
    one = evaluation(pairs=())
    told = summary(one)
    assert "was not tested" in told
    assert "It is better than" not in told
    assert "No differences between methods were computed" in report(one)
    assert "no baseline to compare with" in summary(evaluation(("gi", "exact")))
    assert "no explanation method to rank" in summary(evaluation(("random", "leave-one-out")))
    assert "one method of explanation" in summary(evaluation(("random", "exact")))


# Metrics that are measured on request


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("width", [60, 140])
def test_additional_metrics_are_shown_where_they_were_measured(width: int) -> None:
    one, without = with_additional(), evaluation()
    terminal, page = printed(one, width, color_system=None), read(report(one)).text
    missing = "No value: LDS on 4 of 30 samples (too few features, or the output does not change without them)."
    for text in (terminal, page):
        flat = " ".join(text.split())
        for title in ("SRG ↑", "LDS ↑", "tau ↑", "SRG: the least important are removed first", missing):
            assert title in flat
    for method in one.methods:
        for metric in ADDITIONAL:
            number = evaluation_wording.interval(getattr(method, metric))
            assert number in page
            assert re.sub(r"\b0\.", ".", number) in terminal
    for part in (
        "Symmetric relevance gain.",
        "Linear datamodelling score.",
        "Kendall's tau-b",
        "random subsets of features",
    ):
        assert part in page
    for text in (printed(without, width, color_system=None), read(report(without)).text):
        assert not re.search(r"\b(SRG|LDS|[Tt]au)\b|No value", text)


def test_the_verdict_names_additional_metrics() -> None:
    names = ("random", "gi", "exact")
    assert with_additional(names).surely_best("srg").method == "exact"
    assert with_additional(names).surely_best("lds") is None  # gi is better, but the random order is not worse
    assert evaluation_wording.verdict(with_additional(names)) == (
        "“exact” is surely the best of 2 methods on AUAC, AU-MSE, AUPC, comprehensiveness, sufficiency, SRG and tau; "
        "on LDS no method is."
    )


@in_a_browser
def test_in_a_browser_the_page_shows_in_light_and_dark(pages: Pages) -> None:
    opened = pages.open(report(evaluation()), height=2400)
    found = read(opened.content())
    assert "<b>&$x_1$</b>" in found.text
    assert not found.tags & {"script", "b", "img", "image"}
    check_light_and_dark(opened)
