"""An experiment in the terminal, its figures, and its folder."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import conserva
import made_up_experiments as texts
import made_up_graphs as graphs
from conserva.paper.experiments.findings import columns
from conserva.paper.experiments.published import published
from conserva.paper.experiments.rows import OURS
from conserva.paper.views import panels, results
from conserva.paper.views.page import QUICK, page
from conserva.views import curves
from conserva.views.evaluation_wording import short, without_zero

TEXTS = [texts.result("sst2"), texts.result("semaine", ("a-flow",))]
GRAPHS = graphs.BOTH
RESULTS: dict[str, list[Any]] = {"texts": TEXTS, "graphs": GRAPHS}
KINDS = pytest.mark.parametrize("kind", list(RESULTS))


def printed(some: list[Any], width: int = 140, **settings: Any) -> str:
    out = io.StringIO()
    results.summary(some, Console(file=out, width=width, **settings))
    return out.getvalue()


# The terminal


@pytest.mark.parametrize("width", [40, 80, 140])
@pytest.mark.parametrize(
    ("kind", "best"), [("texts", {"auac": (0,), "au_mse": (0,)}), ("graphs", {"auac": (0, 2, 4, 5), "au_mse": (0, 2)})]
)
def test_the_terminal_shows_both_tables_in_any_width(kind: str, best: dict[str, tuple[int, ...]], width: int) -> None:
    some = RESULTS[kind]
    lines = printed(some, width, color_system=None).splitlines()
    assert max(map(len, lines)) <= width
    start = lines.index("AU-MSE ↓")
    for metric, part in (("auac", lines[:start]), ("au_mse", lines[start:])):
        for row in some[0].rows:
            cells = " ".join(
                line.removeprefix(row.title) for line in part if re.match(rf"{re.escape(row.title)}\s\s", line)
            )
            expected = []
            for one in some:
                means = [each.mean(metric, row.title) for each in columns([one])]
                if kind == "graphs":
                    theirs = published(metric, one.dataset, row.method)
                    means.append(None if theirs is None else theirs.value)
                expected += [without_zero(short(mean)) for mean in means]
            assert [cell.strip("*") for cell in cells.split()] == expected
            marks = [i for i, cell in enumerate(cells.split()) if cell.endswith("*")]
            assert marks == list(best[metric]) * (row.title == OURS)


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("texts", (r"measure +accuracy +accuracy", r"mean +81\.5% +81\.5%", r"always one class +50\.1% +50\.1%",
                   r"the paper's +81\.3% +-", r"best by AUAC in 1 of 2: SST-2")),
        ("graphs", (r"measure +ROC-AUC +accuracy", r"mean +81\.5% +96\.0%", r"always one class +50\.0% +11\.3%",
                    r"the paper's +83\.5% +97\.2%", r".*BACE 152 graphs, one node at a time · MNIST 1,000 graphs, 25 "
                    r"steps", r"best by AUAC in 4 of 6: BACE token, BACE blank, MNIST token, MNIST induced")),
    ],
)  # fmt: skip
def test_the_terminal_says_what_was_reached(kind: str, lines: tuple[str, ...]) -> None:
    text = printed(RESULTS[kind], color_system=None)
    for line in lines:
        assert re.search(rf"^{line}$", text, flags=re.MULTILINE), line
    assert QUICK not in text
    assert QUICK in printed([dataclasses.replace(RESULTS[kind][0], provenance={"quick": True})])


def test_the_best_is_bold_where_a_terminal_can() -> None:
    text = printed(TEXTS, force_terminal=True, color_system="truecolor")
    assert re.findall(r"\x1b\[1m\s*([\d.]+)\s*\x1b", text) == [".900", "1.50"]
    text = printed(GRAPHS, force_terminal=True, color_system="truecolor")
    assert re.findall(r"\x1b\[1m\s*([\d.]+)\s*\x1b", text)[:2] == [".700", ".640"]


def test_without_the_papers_own_method_none_is_best() -> None:
    assert "best by AUAC in 0 of 1: -" in printed([texts.result(missing=(texts.OURS,))])
    assert "best by AUAC in 0 of 3: -" in printed([graphs.result(missing=("ah+ln",))])


def test_two_splits_of_one_dataset_are_told_apart() -> None:
    other = dataclasses.replace(graphs.result(title="BACE, random split"), dataset="bace-random")
    text = printed([GRAPHS[0], other])
    assert "best by AUAC in 4 of 6: BACE token, BACE blank, BACE-random token, BACE-random blank" in text


def test_seven_datasets_fit_a_hundred_columns() -> None:
    names = ("SST-2", "IMDB", "T-Emotions", "T-Hate", "T-Sentiment", "Meld-S", "Semaine")
    lines = printed([texts.result(title=name) for name in names], 100, color_system=None).splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("LRP (AH+LN) ") for line in lines) == 2  # not in several blocks


# Figures


def figure_of(monkeypatch: pytest.MonkeyPatch, draw: Any, some: list[Any], path: Path) -> Any:
    kept: list[Any] = []
    monkeypatch.setattr(panels, "_figure", lambda *size: kept.append(curves._figure(*size)) or kept[-1])
    draw(some, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    return kept[0]


@pytest.mark.parametrize(
    ("some", "missing"), [(TEXTS, ()), (TEXTS[1:], ("A-Flow",)), (GRAPHS, ())], ids=["texts", "one", "graphs"]
)
def test_curves_of_every_column(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, some: list[Any], missing: tuple[str, ...]
) -> None:
    figure = figure_of(monkeypatch, panels.draw_all_curves, some, tmp_path / "curves.png")
    rows = some[0].rows
    titles = [row.title for row in rows if row.group in ("paper", "slides") or row.title in ("exact", "intensity")]
    assert {"LRP (AH+LN)", "exact", "LRP (LN)" if rows[8].group == "slides" else "intensity"} <= set(titles)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [one for one in titles if one not in missing]
    every = columns(some)
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == [one.title for one in every]
    assert len(figure.axes) == 2 * len(every)
    for i, axes in enumerate(figure.axes):
        one, name = every[i // 2], ("activation", "pruning")[i % 2]
        found = {title: row for title in titles if (row := one.row(title))}
        lines = {line.get_label(): line for line in axes.get_lines()}
        assert list(lines) == list(found)
        for title, row in found.items():
            assert tuple(lines[title].get_ydata()) == row.curves[name].mean
            style = curves.STYLES.get(row.method.partition(":")[0])
            assert style is None or lines[title].get_color() == style[0]
        assert len(axes.collections) == len(found)  # the bands


@pytest.mark.parametrize("missing", [(), (texts.EXACT,)])
def test_sums_of_texts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: tuple[str, ...]) -> None:
    some = [texts.result("sst2"), texts.result("semaine", missing)]
    figure = figure_of(monkeypatch, panels.draw_all_conservation, some, tmp_path / "sums.png")
    assert [axes.get_title() for axes in figure.axes] == ["GI", "LRP (AH+LN)", "exact"] * 2
    words = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    numbers = "correlation 0.988 · slope 0.877"
    assert words[:3] == [[numbers, "SST-2"], [numbers], [numbers]]
    last = "does not apply" if missing else numbers
    assert words[3:] == [["the sums do not vary", "Semaine"], [numbers], [last]]
    for axes in figure.axes[: 5 if missing else 6]:
        points, diagonal = axes.get_lines()
        assert len(points.get_xdata()) == 4
        assert diagonal.get_slope() == 1
        low, high = axes.get_ylim()
        assert low < -1 < 3 < high  # all of the diagonal is seen


def test_sums_of_graphs_are_those_of_the_ledgers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    some = [GRAPHS[0], dataclasses.replace(GRAPHS[1], books=GRAPHS[1].books[:-1])]
    figure = figure_of(monkeypatch, panels.draw_all_conservation, some, tmp_path / "sums.png")
    assert [axes.get_title() for axes in figure.axes] == ["GI", "LRP (AH+LN)", "exact"] * 2
    points = figure.axes[1].get_lines()[0]
    assert (tuple(points.get_xdata()), tuple(points.get_ydata())) == ((-1.0, 0.5, 2.0), (-0.5, 0.5, 1.0))
    assert figure.axes[0].texts[0].get_text() == "correlation 0.100 · slope 0.700"
    assert figure.axes[5].texts[0].get_text() == "does not apply"


@pytest.mark.parametrize(
    ("kind", "unit", "on"), [("texts", "tokens", "the mean over models"), ("graphs", "nodes", "on that model")]
)
def test_captions_say_what_on_which_models(kind: str, unit: str, on: str) -> None:
    some = RESULTS[kind]
    curve, sums = panels.curves_caption(some), panels.conservation_caption(some)
    for caption in (curve, sums):
        assert "logit of the true class" in caption
        assert "exact" in caption
        assert f"test {kind}" in caption
    assert f"as {unit} are removed" in curve
    assert "the mean of 2 models for each dataset · protocol paper" in curve
    assert f"evaluated, {on}" in sums
    assert "of one model for" in panels.curves_caption([dataclasses.replace(some[0], trained=some[0].trained[:1])])


# Files


@pytest.mark.parametrize(
    ("kind", "examples", "names"),
    [
        ("texts", "sentences", ["sentences.html", "sentences-sst2.png"]),
        ("graphs", "examples", ["examples.html", "bace-examples.png"]),
    ],
)
def test_everything_is_written(kind: str, examples: str, names: list[str], tmp_path: Path) -> None:
    if kind == "graphs":
        pytest.importorskip("rdkit", reason="molecules are drawn by RDKit")
    out = tmp_path / "new" / kind
    first, second = RESULTS[kind]
    some = [first, dataclasses.replace(second, **{examples: ()})]
    written = results.write(some, out)
    names = ["README.md", "curves.png", "conservation.png", *names]
    assert [path.relative_to(out).as_posix() for path in written] == names
    assert all(path.stat().st_size > 1000 for path in written)
    text = written[0].read_text(encoding="utf-8")
    assert text == page(some)
    assert str(tmp_path) not in text
    assert set(re.findall(r"\]\(([^#)]*)\)", text)) == set(names[1:])
    # Of graphs by the paper's own method only.
    assert written[3].read_text(encoding="utf-8").count("<section") == (3 if kind == "texts" else 1)
    (out / "notes.md").write_text("Read me first.", encoding="utf-8")
    trial = {"name": first.dataset, "tag": "other", "seed": 0, "recipe": {"epochs": 3}, "shape": {}}
    (out / "tried.json").write_text(json.dumps([trial]), encoding="utf-8")
    results.write(some, out)
    text = written[0].read_text(encoding="utf-8")
    assert "## Notes\nRead me first.\n\n## Table 1" in text
    assert f"| {first.title} | other | `epochs` 3 |" in text


@KINDS
def test_without_matplotlib_the_extra_is_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(conserva.Error, match=r"conserva\[figures\]"):
        results.write(RESULTS[kind], tmp_path)
