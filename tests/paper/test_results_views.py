"""Views of the text experiment: every number is there, missing ones are said, verdicts are what intervals carry."""

import dataclasses
import io
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

import conserva
from conserva.paper.experiments import findings
from conserva.paper.experiments.plan import OURS, ROWS
from conserva.paper.experiments.published import published
from conserva.paper.experiments.result import TextResult
from conserva.paper.views import panels, results
from conserva.paper.views.discussion import discussion
from conserva.paper.views.results_page import QUICK, page
from conserva.views import curves
from conserva.views.evaluation_terminal import _bare, interval, short
from made_up_experiments import EXACT, PAPER, TITLES, result
from markdown_tables import plain, row_in, section, tables

SHOWN = [row for row in ROWS if row.group != "released"]
REFUSED = "a-flow"
BOTH = [result("sst2"), result("semaine", (REFUSED,))]


# Reading a page


# The page


@pytest.mark.parametrize(("title", "metric"), [("Table 1: AUAC", "auac"), ("Table 2: AU-MSE", "au_mse")])
def test_tables_hold_every_cell(title: str, metric: str) -> None:
    rows = tables(section(page(BOTH), title))[0]
    assert [row["method"] for row in rows if not row["method"].startswith("*")] == [row.title for row in SHOWN]
    for row in SHOWN:
        line = row_in(rows, method=row.title)
        for one in BOTH:
            found = findings.row_of(one.evaluation, row.method)
            theirs = published(metric, one.dataset, row.method)
            words = {"table": "paper", "notebook": "notebook", "slides": "slides"}
            expected = ["-"] if found is None else _bare(interval(getattr(found, metric))).split(" ", 1)
            expected += [f"{words[theirs.source]} {_bare(short(theirs.value))}"] if theirs else []
            assert plain(line[one.title]) == expected
    assert row_in(rows, method="A-Flow")["Semaine"].startswith("-")
    strong = {one.title: [row["method"] for row in rows if "**" in row[one.title]] for one in BOTH}
    assert strong == {"SST-2": ["LRP (AH+LN)"], "Semaine": ["LRP (AH)" if metric == "auac" else "GI"]}


def test_numbers_are_written_as_in_the_paper() -> None:
    rows = tables(section(page(BOTH), "Table 1: AUAC"))[0]
    assert row_in(rows, method="LRP (AH+LN)")["SST-2"] == "**.900**<br>[.873,&nbsp;.918]<br>paper&nbsp;.908"
    assert row_in(rows, method="LRP (LN)")["Semaine"] == ".460<br>[.446,&nbsp;.469]<br>slides&nbsp;.593"
    rows = tables(section(page(BOTH), "Table 2: AU-MSE"))[0]
    assert row_in(rows, method="Random")["Semaine"] == "20.0<br>[19.4,&nbsp;20.4]"


def test_au_mse_is_also_given_as_a_share_of_randoms() -> None:
    rows = tables(section(page(BOTH), "Table 2: AU-MSE"))[1]
    assert row_in(rows, method="LRP (AH+LN)")["SST-2"] == ".375<br>theirs&nbsp;.393"
    assert row_in(rows, method="LRP (AH+LN)")["Semaine"] == ".500"
    assert row_in(rows, method="A-Flow")["Semaine"] == "-"


def test_verdicts_are_worded() -> None:
    text = section(page(BOTH), "Is LRP (AH+LN) best among the paper's methods?")
    assert "by AUAC on 1 of 2, by AU-MSE on 1 of 2" in text
    rows = tables(text)[0]
    expected = {
        ("SST-2", "AUAC"): ("**yes**", "all 7 others", "none", "none"),
        ("SST-2", "AU-MSE"): ("**yes**", "all 7 others", "none", "none"),
        ("Semaine", "AUAC"): ("no", "Random, A-Last, Rollout, GAE, GI", "LRP&nbsp;(AH)", "none"),
        ("Semaine", "AU-MSE"): ("no", "Random, A-Last, Rollout, GAE, LRP&nbsp;(AH)", "none", "GI"),
    }
    for (title, metric), words in expected.items():
        row = row_in(rows, dataset=title, metric=metric)
        assert tuple(row[key] for key in ("best", "beats", "level with", "behind")) == words
    row = row_in(rows, dataset="Semaine", metric="AUAC")
    assert row["over GI"] == "**.050**<br>[.046,&nbsp;.054]"
    assert row["over LRP (AH)"] == "-.001<br>[-.005,&nbsp;.003]"
    assert row_in(rows, dataset="Semaine", metric="AU-MSE")["over GI"] == "**-1.00**<br>[-1.10,&nbsp;-.90]"


def test_what_is_released_is_compared_in_both_metrics() -> None:
    auac, au_mse = tables(section(page(BOTH), "What the released code does otherwise"))
    assert row_in(auac, method="A-Last, all rows")["SST-2"] == (
        "code&nbsp;.450<br>defined&nbsp;.650<br>**-.200**<br>[-.204,&nbsp;-.196]"
    )
    assert row_in(au_mse, method="LRP (AH+LN), gamma .01")["Semaine"].startswith("code&nbsp;3.60<br>defined&nbsp;10.0")
    assert "**6.40**" in row_in(au_mse, method="LRP (AH+LN), gamma .01")["Semaine"]  # less is better
    level = dataclasses.replace(BOTH[0].evaluation, pairs=tuple(
        dataclasses.replace(pair, low=-0.5, high=0.5) for pair in BOTH[0].evaluation.pairs
    ))  # fmt: skip
    text = page([dataclasses.replace(BOTH[0], evaluation=level)])
    assert "**" not in section(text, "What the released code does otherwise")


def test_conservation_and_classifiers() -> None:
    text = page(BOTH)
    rows = tables(section(text, "Where relevance goes"))[0]
    assert [row["method"] for row in rows] == ["GI", "LRP (AH)", "LRP (AH+LN)", "LRP (LN)", "exact"]
    assert plain(rows[0]["SST-2"]) == ["corr. .988", "slope .877", "gap .123"]
    assert plain(rows[0]["Semaine"]) == ["corr. -", "slope -", "gap .123"]
    rows = tables(section(text, "Classifiers differ"))[0]
    assert rows[0]["GI"] == ".800,&nbsp;.900<br>±&nbsp;.050"
    assert [row["LRP (AH+LN) above GI"] for row in rows] == ["on every one", "not on seed 1"]
    first = tables(section(text, "Classifiers"))[0][0]
    expected = {
        "dataset": "SST-2", "classes": "2", "train / validation / test texts": "67,324 / 872 / 1,821",
        "evaluated": "1,234", "learning rate": "2e-05", "test accuracy": "81.5% (80.0, 83.0)",
        "validation accuracy": "81.0% to 82.0%", "most frequent class": "50.1%", "the paper's accuracy": "81.3%",
    }  # fmt: skip
    assert {key: " ".join(plain(cell)) for key, cell in first.items()} == expected
    assert tables(section(text, "Classifiers"))[0][1]["the paper's accuracy"] == "-"


def test_one_classifier_has_no_spread() -> None:
    text = page([result(seeds=1)])
    assert "with seed 0." in " ".join(text.split())
    row = tables(section(text, "Classifiers differ"))[0][0]
    assert row["GI"] == ".800"
    assert tables(section(text, "Classifiers"))[0][0]["test accuracy"] == "80.0%"


def test_the_start_says_what_was_run() -> None:
    text = " ".join(page(BOTH).partition("## Classifiers")[0].split())
    for part in (
        "# Tables 1 and 2 of Ali et al. (2022), texts", "frozen embeddings of `all-MiniLM-L6-v2`,", "seeds 0 and 1",
        "true class", "special tokens as well", "`unk`", "10 steps", "`paper`", "conserva 0.1.0, torch 2.13.0, on cuda",
    ):  # fmt: skip
        assert part in text
    assert "quirks" not in text
    released = [result(recipe={**BOTH[0].recipe, "as_released": True})]
    assert "with the quirks of the authors' released code" in page(released)
    assert "--out results/text --as-released" in page(released)


@pytest.mark.parametrize("quick", [False, True])
def test_a_quick_run_says_that_it_means_nothing(quick: bool) -> None:
    one = [result(provenance={"quick": quick})]
    assert (f"> **{QUICK}**" in page(one)) == quick
    assert (QUICK in printed(one)) == quick


def test_notes_stand_below_the_classifiers() -> None:
    text = page(BOTH, "Look *here*.\n")
    titles = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert titles[:3] == ["Classifiers", "What to read from it", "Table 1: AUAC"]
    assert section(text, "What to read from it").strip() == f"{discussion(BOTH)}\n\nLook *here*."
    quick = [result(provenance={"quick": True})]
    assert "What to read from it" not in page(quick)
    assert section(page(quick, "Look."), "What to read from it").strip() == "Look."


def test_learning_rates_that_were_tried_are_shown() -> None:
    one = {"dataset": "sst2", "weight_decay": 0.0, "validation_accuracy": 0.8, "test_accuracy": 0.81,
           "best_epoch": 2, "epochs": 5}  # fmt: skip
    rate = result("sst2").recipe["learning_rate"]
    tried = [
        {**one, "learning_rate": rate},
        {**one, "learning_rate": 0.5},
        {**one, "dataset": "imdb", "learning_rate": 1},
    ]
    rows = tables(section(page([result("sst2")], tried=tried), "Classifiers"))[1]
    assert [row["learning rate"] for row in rows] == [f"**{rate:g}**", "0.5"]
    assert (rows[0]["validation accuracy"], rows[0]["test accuracy"], rows[0]["best epoch"]) == (
        "80.0%",
        "81.0%",
        "2 of 5",
    )
    assert "Learning rates" not in page([result("sst2")])


def test_the_page_holds_no_hole_and_no_path() -> None:
    for some in (BOTH, BOTH[:1], [result("semaine", (REFUSED, OURS))], [result(sentences=())]):
        text = page(some)
        assert not re.search(r"\b(nan|inf|None|True|False)\b", text)
        assert not re.search(r"(?<![\w<.])/\w|file:|\\", text)
    assert "- Semaine: `a-flow` does not apply: needs &lt;maps&gt; &amp; a tokenizer." in page(BOTH)


def test_without_the_papers_own_method_there_is_no_verdict() -> None:
    one = [result("sst2", (OURS,))]
    row = tables(section(page(one), "Is LRP (AH+LN) best among the paper's methods?"))[0][0]
    assert {cell for key, cell in row.items() if key not in ("dataset", "metric")} == {"-"}
    assert "best by AUAC on 0 of 1: -" in printed(one)


# The terminal


def printed(some: list[TextResult], width: int = 100, **settings: object) -> str:
    out = io.StringIO()
    results.summary(some, Console(file=out, width=width, **settings))  # type: ignore[arg-type]
    return out.getvalue()


def test_the_terminal_shows_both_tables() -> None:
    lines = printed(BOTH, color_system=None).splitlines()
    assert max(map(len, lines)) <= 100
    for metric, title in (("auac", "AUAC ↑"), ("au_mse", "AU-MSE ↓")):
        start = lines.index(title)
        for row in ROWS:
            line = next(line for line in lines[start:] if re.match(rf"{re.escape(row.title)}\s\s", line))
            means = [findings.row_of(one.evaluation, row.method) for one in BOTH]
            expected = ["-" if found is None else _bare(short(getattr(found, metric).mean)) for found in means]
            assert [cell.strip("*") for cell in line.removeprefix(row.title).split()] == expected
            assert [cell.endswith("*") for cell in line.removeprefix(row.title).split()] == [row.method == OURS, False]
    whole = "\n".join(lines)
    assert "best by AUAC on 1 of 2: SST-2" in whole
    assert re.search(r"^mean +81\.5% +81\.5%$", whole, flags=re.MULTILINE)
    assert re.search(r"^the paper's +81\.3% +-$", whole, flags=re.MULTILINE)


def test_the_best_is_bold_where_a_terminal_can() -> None:
    text = printed(BOTH, force_terminal=True, color_system="truecolor")
    assert re.findall(r"\x1b\[1m\s*([\d.]+)\s*\x1b", text) == [".900", "1.50"]


def test_seven_datasets_fit_a_hundred_columns() -> None:
    names = ("SST-2", "IMDB", "T-Emotions", "T-Hate", "T-Sentiment", "Meld-S", "Semaine")
    lines = printed([result(title=name) for name in names], color_system=None).splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("LRP (AH+LN) ") for line in lines) == 2  # not in several blocks


# Figures and files


def figure_of(monkeypatch: pytest.MonkeyPatch, draw, some: list[TextResult], path: Path):
    kept = []
    monkeypatch.setattr(panels, "_figure", lambda *size: kept.append(curves._figure(*size)) or kept[-1])
    draw(some, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    return kept[0]


@pytest.mark.parametrize("some", [BOTH, BOTH[1:]])
def test_curves_of_every_dataset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, some: list[TextResult]) -> None:
    figure = figure_of(monkeypatch, panels.draw_all_curves, some, tmp_path / "curves.png")
    expected = [row.title for row in ROWS if row.method in (*PAPER, EXACT)]
    if len(some) == 1:
        expected.remove("A-Flow")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == expected
    assert len(figure.axes) == 2 * len(some)
    for i, axes in enumerate(figure.axes):
        one, name = some[i // 2], ("activation", "pruning")[i % 2]
        lines = {line.get_label(): line for line in axes.get_lines()}
        drawn = [row.method for row in ROWS if row.method in (*PAPER, EXACT)]
        methods = [method for method in drawn if findings.row_of(one.evaluation, method)]
        assert list(lines) == [TITLES[method] for method in methods]
        for method in methods:
            line, found = lines[TITLES[method]], findings.row_of(one.evaluation, method)
            assert found is not None
            assert tuple(line.get_ydata()) == found.curves[name].mean
            colour, _ = curves.STYLES.get(method.partition(":")[0], (curves.GREY, ""))
            assert line.get_color() == colour
        assert len(axes.collections) == len(methods)  # the bands
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == [one.title for one in some]


@pytest.mark.parametrize("missing", [(), (EXACT,)])
def test_sums_of_every_dataset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: tuple[str, ...]) -> None:
    some = [result("sst2"), result("semaine", missing)]
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


def test_captions_say_what_on_which_model() -> None:
    for caption in (panels.curves_caption(BOTH), panels.conservation_caption(BOTH)):
        assert "logit of the true class" in caption
        assert "the mean of 2 attention-only classifiers" in caption
        assert "all-MiniLM-L6-v2" in caption
        assert "exact" in caption
    assert "of one attention-only classifier for" in panels.curves_caption([result(seeds=1)])


def test_everything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "new" / "text"
    some = [BOTH[0], dataclasses.replace(BOTH[1], sentences=())]
    written = results.write(some, out)
    names = ["README.md", "curves.png", "conservation.png", "sentences.html", "sentences-sst2.png"]
    assert [path.relative_to(out).as_posix() for path in written] == names
    assert all(path.stat().st_size > 1000 for path in written)
    text = written[0].read_text(encoding="utf-8")
    assert text == page(some)
    assert str(tmp_path) not in text
    assert set(re.findall(r"\]\(([^#)]*)\)", text)) == set(names[1:])
    assert written[3].read_text(encoding="utf-8").count("<section>") == 3
    (out / "notes.md").write_text("Read me first.", encoding="utf-8")
    results.write(some, out)
    assert "\n\nRead me first.\n\n## Table 1" in written[0].read_text(encoding="utf-8")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(conserva.Error, match=r"conserva\[figures\]"):
        results.write(BOTH, tmp_path)
