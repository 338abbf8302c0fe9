"""Views of the graph experiment: every number is there, the paper's beside it, and what is missing is said."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conserva.paper.experiments import findings
from conserva.paper.experiments.graph_plan import GRAPH_OURS, GRAPH_ROWS
from conserva.paper.experiments.graph_result import GraphResult
from conserva.paper.experiments.published import published
from conserva.paper.views import graph_panels, graph_results, panels
from conserva.paper.views.graph_discussion import graph_discussion
from conserva.paper.views.graphs_page import page
from conserva.paper.views.results_page import QUICK
from conserva.views import curves
from conserva.views.evaluation_terminal import _bare, interval, short
from made_up_graphs import BOTH, COLUMNS, MASKS, PAPER, TITLES, result, title
from markdown_tables import plain, row_in, section, tables

# The page


@pytest.mark.parametrize(("name", "metric"), [("Table 1: AUAC", "auac"), ("Table 2: AU-MSE", "au_mse")])
def test_tables_hold_every_cell_and_the_papers_numbers(name: str, metric: str) -> None:
    rows = tables(section(page(BOTH), name))[0]
    assert [row["method"] for row in rows if not row["method"].startswith("*")] == [row.title for row in GRAPH_ROWS]
    for row in GRAPH_ROWS:
        line = row_in(rows, method=row.title)
        for one, mask in COLUMNS:
            found = findings.row_of(one.evaluations[mask], row.method)
            expected = ["-"] if found is None else _bare(interval(getattr(found, metric))).split(" ", 1)
            assert plain(line[title(one, mask)]) == expected
        for one in BOTH:
            theirs = published(metric, one.dataset, row.method)
            assert line[title(one, "the paper")] == ("-" if theirs is None else _bare(short(theirs.value)))
    strong = {mask: [row["method"] for row in rows if "**" in row[title(BOTH[1], mask)]] for mask in MASKS}
    best = {"auac": ("LRP (AH+LN)", "LRP (AH+LN)", "A-Last"), "au_mse": ("A-Flow", "LRP (AH)", "GI")}[metric]
    assert strong == {mask: [method] for mask, method in zip(MASKS, best, strict=True)}


def test_au_mse_is_also_a_share_of_randoms() -> None:
    row = row_in(tables(section(page(BOTH), "Table 2: AU-MSE"))[1], method="LRP (AH+LN)")
    assert row[title(BOTH[1], "token")] == ".821"
    assert row[title(BOTH[1], "the paper")] == ".251"
    assert row[title(BOTH[0], "the paper")] == ".826"
    row = row_in(tables(section(page(BOTH), "Table 2: AU-MSE"))[1], method="A-Flow")
    assert row[title(BOTH[1], "the paper")] == "-"


def test_the_start_says_what_was_run() -> None:
    text = page(BOTH).partition("## Models")[0]
    for part in (
        "# Tables 1 and 2 of Ali et al. (2022), graphs", "Graphormers of 2 layers", "seeds 0 and 1", "true class",
        "BACE one node at a time on 152 test graphs and MNIST superpixels 25 steps on 1,000 test graphs",
        "- `token`: nothing looks at", "- `induced`: degrees", "- `blank`: a node stays", "virtual node always stays",
        "a half of it on BACE and a tenth of it on MNIST", "conserva 0.1.0, torch 2.13.0, on cuda",
    ):  # fmt: skip
        assert part in text
    one_mask = dataclasses.replace(BOTH[0], evaluations={"token": BOTH[0].evaluations["token"]})
    assert "`induced`" not in page([one_mask])


def test_models_are_told_with_what_the_paper_reached() -> None:
    text = section(page(BOTH), "Models")
    bace, mnist = ({key: " ".join(plain(cell)) for key, cell in row.items()} for row in tables(text)[0])
    assert bace == {
        "dataset": "BACE", "classes": "2", "graphs": "train 1,210 validation 151 test 152",
        "evaluated": "152, one node at a time", "parameters": "97,000", "epoch kept": "180, 181 of 1,000",
        "measure": "ROC-AUC", "test": "81.5% (80.0, 83.0)", "validation": "75.0% to 76.0%",
        "most frequent class": "60.5%", "the paper's": "83.5%",
    }  # fmt: skip
    assert (mnist["measure"], mnist["test"], mnist["validation"]) == ("accuracy", "96.0% (95.0, 97.0)", "-")
    assert mnist["the paper's"] == "97.2%"
    assert "learning rate 0.0002, linear schedule after a warm-up of 2% of the steps; weight decay 0.01" in text
    assert "1,000 epochs; the epoch that is best on the validation split is kept" in text
    assert "10 epochs, on train and validation together; the last epoch is kept" in text
    assert "norms after the sums" in page([result(shape={**BOTH[0].shape, "pre_norm": False})])
    assert tables(section(page([result(parameters=None)]), "Models"))[0][0]["parameters"] == "-"


def test_verdicts_are_worded() -> None:
    text = section(page(BOTH), "Is LRP (AH+LN) best among the paper's methods?")
    assert "by AUAC in 4 of 6, by AU-MSE in 2 of 6" in text
    rows = tables(text)[0]
    expected = {
        ("BACE", "token", "AUAC"): ("**yes**", "all 7 others", "none", "none"),
        ("BACE", "induced", "AUAC"): ("no", "Random, A-Last, A-Flow, Rollout, GI, LRP&nbsp;(AH)", "GAE", "none"),
        ("BACE", "induced", "AU-MSE"): ("no", "A-Last, A-Flow, Rollout, GI, LRP&nbsp;(AH)", "Random, GAE", "none"),
        ("MNIST superpixels", "token", "AU-MSE"): (
            "no", "Random, A-Last, GAE, GI, LRP&nbsp;(AH)", "none", "A-Flow, Rollout",
        ),
        ("MNIST superpixels", "blank", "AUAC"): (
            "no", "Random, A-Flow, Rollout, GAE, GI", "none", "A-Last, LRP&nbsp;(AH)",
        ),
    }  # fmt: skip
    for (name, mask, metric), words in expected.items():
        row = row_in(rows, dataset=name, masking=mask, metric=metric)
        assert tuple(row[key] for key in ("best", "beats", "level with", "behind")) == words
    assert row_in(rows, dataset="BACE", masking="token", metric="AUAC")["over GI"] == "**.170**<br>[.166,&nbsp;.174]"
    assert row_in(rows, dataset="BACE", masking="induced", metric="AUAC")["over GAE"] == ".001<br>[-.003,&nbsp;.005]"


def test_models_differ_seed_by_seed() -> None:
    auac, au_mse = tables(section(page(BOTH), "Models differ"))
    row = row_in(auac, dataset="BACE", masking="token")
    assert row["GI"] == ".530,&nbsp;.830<br>±&nbsp;.150"
    assert row["LRP (AH+LN) better than GI"] == "not on seed 1"
    assert row_in(au_mse, dataset="BACE", masking="token")["LRP (AH+LN) better than GI"] == "on every one"
    assert row_in(auac, dataset="MNIST superpixels", masking="token")["LRP (AH+LN) better than GI"] == "on every one"
    assert tables(section(page([result(seeds=1)]), "Models differ"))[0][0]["GI"] == ".530"


def test_books_are_shown() -> None:
    rows = tables(section(page(BOTH), "Where relevance goes").replace("\\|", "!"))[0]
    assert [row["rules"] for row in rows[:5]] == ["GI", "LRP (AH)", "LRP (LN)", "LRP (AH+LN)", "exact"]
    row = row_in(rows, dataset="BACE", rules="exact")
    assert [row[key] for key in ("corr.", "slope", "corr. without biases", "!logit!", "!nodes!", "!virtual node!")] == [
        ".880", ".700", ".970", "2.00", "1.10", ".500",
    ]  # fmt: skip
    assert [row[key] for key in ("!biases!", "!gap!", "largest !gap!")] == [".800", "2e-16", "4e-15"]
    assert row_in(rows, dataset="BACE", rules="GI")["largest !gap!"] == "1.25"


def test_trainings_tried_are_shown_with_the_one_taken_in_bold() -> None:
    tried = [
        {"name": "bace", "tag": "paper", "seed": seed, "taken": True, "recipe": {}, "shape": {},
         "validation_roc_auc": 0.7 + seed / 10, "test_roc_auc": 0.75, "test_accuracy": 0.5} for seed in (0, 1)
    ] + [
        {"name": "bace", "tag": "slow", "seed": 0, "recipe": {"learning_rate": 1e-5}, "shape": {"pre_norm": False},
         "validation_roc_auc": 0.6, "test_roc_auc": 0.65},
        {"name": "other", "tag": "x", "seed": 0, "recipe": {}, "shape": {}},
        {"name": "mnist", "tag": "all", "seed": 0, "recipe": {"hold_out": False}, "shape": {}, "test_accuracy": 0.97,
         "validation_accuracy": None},
    ]  # fmt: skip
    text = section(page(BOTH, tried=tried), "Models")
    assert "### Trainings tried" in text
    rows = tables(text)[1]
    assert [row["training"] for row in rows] == ["**paper**", "slow", "all"]
    assert rows[0] | {"training": ""} == {
        "dataset": "BACE", "training": "", "settings": "-", "measure": "ROC-AUC", "seeds": "0, 1",
        "validation": "70.0, 80.0 %", "test": "75.0, 75.0 %",
    }  # fmt: skip
    assert rows[1]["settings"] == "`learning_rate` 1e-05, `pre_norm` no"
    assert (rows[2]["settings"], rows[2]["validation"], rows[2]["test"]) == ("`hold_out` no", "-", "97.0 %")
    assert "Trainings tried" not in page(BOTH)
    assert "Bold: the settings" not in page(BOTH, tried=tried[2:3])


def test_notes_stand_below_the_discussion_and_a_quick_run_has_none() -> None:
    text = page(BOTH, "Look *here*.\n")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE)[:3] == ["Models", "What to read from it", "Table 1: AUAC"]
    assert section(text, "What to read from it").strip() == f"{graph_discussion(BOTH)}\n\nLook *here*."
    quick = [result(provenance={"quick": True})]
    assert f"> **{QUICK}**" in page(quick)
    assert QUICK not in page(BOTH)
    assert "What to read from it" not in page(quick)
    assert section(page(quick, "Look."), "What to read from it").strip() == "Look."


def test_the_page_holds_no_hole_and_no_path() -> None:
    bare = dataclasses.replace(BOTH[0], examples=(), books=())
    for some in (BOTH, BOTH[1:], [bare], [result(missing=("a-flow", GRAPH_OURS))], [result(missing=PAPER)]):
        text = page(some)
        assert not re.search(r"\b(nan|inf|None|True|False)\b", text)
        assert not re.search(r"(?<![\w<.])/\w|file:", text)
    assert "- BACE token: `a-flow` does not apply: needs &lt;maps&gt;." in page([result(missing=("a-flow",))])
    assert "--post-norm" in page([result(shape={**BOTH[0].shape, "pre_norm": False})])
    assert "--post-norm" not in page(BOTH)


# The terminal


def printed(some: list[GraphResult], width: int = 140, **settings: Any) -> str:
    out = io.StringIO()
    graph_results.summary(some, Console(file=out, width=width, **settings))
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 80, 140])
def test_the_terminal_shows_both_tables_in_any_width(width: int) -> None:
    text = printed(BOTH, width, color_system=None)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    start = lines.index("AU-MSE ↓")
    for metric, part in (("auac", lines[:start]), ("au_mse", lines[start:])):
        for row in GRAPH_ROWS:
            cells = " ".join(
                line.removeprefix(row.title) for line in part if re.match(rf"{re.escape(row.title)}\s\s", line)
            )
            expected = []
            for one in BOTH:
                for mask in MASKS:
                    found = findings.row_of(one.evaluations[mask], row.method)
                    expected.append("-" if found is None else _bare(short(getattr(found, metric).mean)))
                theirs = published(metric, one.dataset, row.method)
                expected.append("-" if theirs is None else _bare(short(theirs.value)))
            assert [cell.strip("*") for cell in cells.split()] == expected
            marks = [cell.endswith("*") for cell in cells.split()]
            best = {"auac": (0, 2, 4, 5), "au_mse": (0, 2)}[metric]
            assert [i for i, marked in enumerate(marks) if marked] == list(best) * (row.method == GRAPH_OURS)


def test_the_terminal_says_what_was_reached() -> None:
    text = printed(BOTH, color_system=None)
    for line in (
        r"measure +ROC-AUC +accuracy", r"mean +81\.5% +96\.0%", r"always one class +50\.0% +11\.3%",
        r"the paper's +83\.5% +97\.2%", r"best by AUAC in 4 of 6: BACE token, BACE blank, MNIST token, MNIST induced",
        r".*BACE 152 graphs, one node at a time · MNIST 1,000 graphs, 25 steps",
    ):  # fmt: skip
        assert re.search(rf"^{line}$", text, flags=re.MULTILINE), line
    assert QUICK in printed([result(provenance={"quick": True})])
    assert QUICK not in text
    coloured = printed(BOTH, force_terminal=True, color_system="truecolor")
    assert re.findall(r"\x1b\[1m\s*([\d.]+)\s*\x1b", coloured)[:2] == [".700", ".640"]
    assert "best by AUAC in 0 of 3: -" in printed([result(missing=(GRAPH_OURS,))])


# Figures and files


def figure_of(monkeypatch: pytest.MonkeyPatch, draw: Any, some: list[GraphResult], path: Path) -> Any:
    kept: list[Any] = []
    monkeypatch.setattr(panels, "_figure", lambda *size: kept.append(curves._figure(*size)) or kept[-1])
    draw(some, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    return kept[0]


def test_curves_have_a_row_for_every_masking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figure = figure_of(monkeypatch, graph_panels.draw_graph_curves, BOTH, tmp_path / "curves.png")
    names = [TITLES[method] for method in (*PAPER, "exact", "intensity")]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == [
        f"{name} {mask}" for name in ("BACE", "MNIST") for mask in MASKS
    ]
    for i, axes in enumerate(figure.axes):
        one, mask = COLUMNS[i // 2]
        lines = {line.get_label(): tuple(line.get_ydata()) for line in axes.get_lines()}
        assert list(lines) == [name for name in names if name != "intensity" or one.dataset == "mnist"]
        for method in PAPER:
            found = findings.row_of(one.evaluations[mask], method)
            assert found is not None
            assert lines[TITLES[method]] == found.curves[("activation", "pruning")[i % 2]].mean


def test_sums_are_those_of_the_books(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    some = [BOTH[0], dataclasses.replace(BOTH[1], books=BOTH[1].books[:-1])]
    figure = figure_of(monkeypatch, graph_panels.draw_graph_books, some, tmp_path / "sums.png")
    assert [axes.get_title() for axes in figure.axes] == ["GI", "LRP (AH+LN)", "exact"] * 2
    points = figure.axes[1].get_lines()[0]
    assert (tuple(points.get_xdata()), tuple(points.get_ydata())) == ((-1.0, 0.5, 2.0), (-0.5, 0.5, 1.0))
    assert figure.axes[0].texts[0].get_text() == "correlation 0.100 · slope 0.700"
    assert figure.axes[5].texts[0].get_text() == "does not apply"


def test_captions_say_what_on_which_models() -> None:
    for caption in (graph_panels.graph_curves_caption(BOTH), graph_panels.books_caption(BOTH)):
        assert "logit of the true class" in caption
        assert "2-layer Graphormer" in caption
    assert "the mean of 2 2-layer Graphormers for each dataset" in graph_panels.graph_curves_caption(BOTH)
    assert "of one 2-layer Graphormer for" in graph_panels.graph_curves_caption([result(seeds=1)])


def test_everything_is_written(tmp_path: Path) -> None:
    pytest.importorskip("rdkit", reason="molecules are drawn by RDKit")
    out = tmp_path / "new" / "graphs"
    some = [BOTH[0], dataclasses.replace(BOTH[1], examples=())]
    written = graph_results.write(some, out)
    names = ["README.md", "curves.png", "conservation.png", "examples.html", "bace-examples.png"]
    assert [path.relative_to(out).as_posix() for path in written] == names
    assert all(path.stat().st_size > 1000 for path in written)
    text = written[0].read_text(encoding="utf-8")
    assert text == page(some)
    assert set(re.findall(r"\]\(([^#)]*)\)", text)) == set(names[1:])
    assert written[3].read_text(encoding="utf-8").count("<section") == 1  # by the paper's own method alone
    (out / "notes.md").write_text("Read me first.", encoding="utf-8")
    trial = {"name": "bace", "tag": "other", "seed": 0, "recipe": {"epochs": 3}, "shape": {}, "test_roc_auc": 0.5}
    (out / "tried.json").write_text(json.dumps([trial]), encoding="utf-8")
    graph_results.write(some, out)
    text = written[0].read_text(encoding="utf-8")
    assert "\n\nRead me first.\n\n## Table 1" in text
    assert "| BACE | other | `epochs` 3 |" in text


def test_two_splits_of_one_dataset_are_told_apart() -> None:
    other = result(dataset="bace", title="BACE, random split")
    other = dataclasses.replace(other, dataset="bace-random")
    some = [BOTH[0], other]
    assert "best by AUAC in 4 of 6: BACE token, BACE blank, BACE-random token, BACE-random blank" in printed(some)
    titles = tables(section(page(some), "Table 1: AUAC"))[0][0]
    assert {"BACE<br>token", "BACE-random<br>token", "BACE-random<br>the&nbsp;paper"} <= set(titles)
    row = row_in(tables(section(page(some), "Table 1: AUAC"))[0], method="LRP (AH+LN)")
    assert row["BACE-random<br>the&nbsp;paper"] == ".707"  # the paper does not say which split it had
