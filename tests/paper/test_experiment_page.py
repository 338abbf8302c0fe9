"""The page of an experiment: every number is there, the authors' beside it, and what is missing is said."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest

import made_up_experiments as texts
import made_up_graphs as graphs
from conserva.paper.experiments.published import published
from conserva.paper.experiments.result import AnyResult, row_of
from conserva.paper.views.page import QUICK, page
from conserva.views.evaluation_wording import interval, short, without_zero
from markdown_tables import plain, row_in, section, tables

REFUSED = "a-flow"
TEXTS = [texts.result("sst2"), texts.result("semaine", (REFUSED,))]
GRAPHS = graphs.BOTH
RESULTS: dict[str, list[Any]] = {"texts": TEXTS, "graphs": GRAPHS}
MADE: dict[str, Callable[..., AnyResult]] = {"texts": texts.result, "graphs": graphs.result}
OURS = {"texts": texts.OURS, "graphs": "ah+ln"}
KINDS = pytest.mark.parametrize("kind", list(RESULTS))


def cell(one: AnyResult, mask: str, metric: str, method: str) -> list[str]:
    """Return the lines that a cell has to have: mean and interval, or a dash."""
    found = row_of(one.evaluations[mask], method)
    return ["-"] if found is None else without_zero(interval(getattr(found, metric))).split(" ", 1)


# Tables 1 and 2


@KINDS
@pytest.mark.parametrize(("title", "metric"), [("Table 1: AUAC", "auac"), ("Table 2: AU-MSE", "au_mse")])
def test_tables_hold_every_cell_and_the_authors_numbers(kind: str, title: str, metric: str) -> None:
    results = RESULTS[kind]
    rows = tables(section(page(results), title))[0]
    shown = [row for row in results[0].rows if row.group != "released"]
    assert [row["method"] for row in rows if not row["method"].startswith("*")] == [row.title for row in shown]
    words = {"table": "paper", "notebook": "notebook", "slides": "slides"}
    for row in shown:
        line = row_in(rows, method=row.title)
        for one in results:
            theirs = published(metric, one.dataset, row.method)
            value = None if theirs is None else without_zero(short(theirs.value))
            if kind == "texts":
                last = [] if theirs is None else [f"{words[theirs.source]} {value}"]
                exchanged = published(metric, "meld-s", row.method) if one.dataset == "semaine" else None
                last += [] if exchanged is None else [f"or {without_zero(short(exchanged.value))}"]
                assert plain(line[one.title]) == cell(one, "", metric, row.method) + last
                continue
            for mask in one.evaluations:
                assert plain(line[graphs.title(one, mask)]) == cell(one, mask, metric, row.method)
            assert line[graphs.title(one, "the paper")] == (value or "-")


@pytest.mark.parametrize(
    ("metric", "of_texts", "of_mnist"),
    [
        ("Table 1: AUAC", ["LRP (AH+LN)", "LRP (AH)"], ["LRP (AH+LN)", "LRP (AH+LN)", "A-Last"]),
        ("Table 2: AU-MSE", ["LRP (AH+LN)", "GI"], ["A-Flow", "LRP (AH)", "GI"]),
    ],
)
def test_the_best_of_the_paper_is_bold(metric: str, of_texts: list[str], of_mnist: list[str]) -> None:
    rows = tables(section(page(TEXTS), metric))[0]
    strong = [[row["method"] for row in rows if "**" in row[one.title]] for one in TEXTS]
    assert strong == [[title] for title in of_texts]
    rows = tables(section(page(GRAPHS), metric))[0]
    strong = [[row["method"] for row in rows if "**" in row[graphs.title(GRAPHS[1], mask)]] for mask in graphs.MASKS]
    assert strong == [[title] for title in of_mnist]


def test_numbers_are_written_as_in_the_paper() -> None:
    rows = tables(section(page(TEXTS), "Table 1: AUAC"))[0]
    assert row_in(rows, method="LRP (AH+LN)")["SST-2"] == "**.900**<br>[.873,&nbsp;.918]<br>paper&nbsp;.908"
    assert row_in(rows, method="LRP (LN)")["Semaine"] == ".460<br>[.446,&nbsp;.469]<br>slides&nbsp;.593<br>or&nbsp;.632"
    rows = tables(section(page(TEXTS), "Table 2: AU-MSE"))[0]
    assert row_in(rows, method="Random")["Semaine"] == "20.0<br>[19.4,&nbsp;20.4]<br>paper&nbsp;1.92<br>or&nbsp;2.54"
    bullet = "- or: the number in another column, with which that of Semaine may be exchanged"
    assert [bullet in section(page(some), "Table 1: AUAC") for some in (TEXTS, TEXTS[:1])] == [True, False]


def test_au_mse_is_also_given_as_a_share_of_randoms() -> None:
    rows = tables(section(page(TEXTS), "Table 2: AU-MSE"))[1]
    assert row_in(rows, method="LRP (AH+LN)")["SST-2"] == ".375<br>theirs&nbsp;.393"
    assert row_in(rows, method="LRP (AH+LN)")["Semaine"] == ".500<br>theirs&nbsp;.563<br>or&nbsp;.583"
    assert row_in(rows, method="A-Flow")["Semaine"] == "-"
    rows = tables(section(page(GRAPHS), "Table 2: AU-MSE"))[1]
    row = row_in(rows, method="LRP (AH+LN)")
    assert row[graphs.title(GRAPHS[1], "token")] == ".821"
    assert row[graphs.title(GRAPHS[1], "the paper")] == ".251"
    assert row[graphs.title(GRAPHS[0], "the paper")] == ".826"
    assert row_in(rows, method="A-Flow")[graphs.title(GRAPHS[1], "the paper")] == "-"


def test_two_splits_of_one_dataset_are_told_apart() -> None:
    other = dataclasses.replace(graphs.result(title="BACE, random split"), dataset="bace-random")
    rows = tables(section(page([GRAPHS[0], other]), "Table 1: AUAC"))[0]
    assert {"BACE<br>token", "BACE-random<br>token", "BACE-random<br>the&nbsp;paper"} <= set(rows[0])
    row = row_in(rows, method="LRP (AH+LN)")
    assert row["BACE-random<br>the&nbsp;paper"] == ".707"  # the paper does not say which split it had


# Comparisons


@pytest.mark.parametrize(
    ("kind", "counts", "expected"),
    [
        (
            "texts",
            "by AUAC in 1 of 2, by AU-MSE in 1 of 2",
            {
                ("SST-2", "AUAC"): ("**yes**", "all 7 others", "none", "none"),
                ("SST-2", "AU-MSE"): ("**yes**", "all 7 others", "none", "none"),
                ("Semaine", "AUAC"): ("no", "Random, A-Last, Rollout, GAE, GI", "LRP&nbsp;(AH)", "none"),
                ("Semaine", "AU-MSE"): ("no", "Random, A-Last, Rollout, GAE, LRP&nbsp;(AH)", "none", "GI"),
            },
        ),
        (
            "graphs",
            "by AUAC in 4 of 6, by AU-MSE in 2 of 6",
            {
                ("BACE", "token", "AUAC"): ("**yes**", "all 7 others", "none", "none"),
                ("BACE", "induced", "AUAC"): (
                    "no", "Random, A-Last, A-Flow, Rollout, GI, LRP&nbsp;(AH)", "GAE", "none",
                ),
                ("BACE", "induced", "AU-MSE"): (
                    "no", "A-Last, A-Flow, Rollout, GI, LRP&nbsp;(AH)", "Random, GAE", "none",
                ),
                ("MNIST superpixels", "token", "AU-MSE"): (
                    "no", "Random, A-Last, GAE, GI, LRP&nbsp;(AH)", "none", "A-Flow, Rollout",
                ),
                ("MNIST superpixels", "blank", "AUAC"): (
                    "no", "Random, A-Flow, Rollout, GAE, GI", "none", "A-Last, LRP&nbsp;(AH)",
                ),
            },
        ),
    ],
)  # fmt: skip
def test_verdicts_are_worded(kind: str, counts: str, expected: dict[tuple[str, ...], tuple[str, ...]]) -> None:
    text = section(page(RESULTS[kind]), "Is LRP (AH+LN) best among the paper's methods?")
    assert counts in text
    rows = tables(text)[0]
    for names, words in expected.items():
        keys = ("dataset", "metric") if kind == "texts" else ("dataset", "masking", "metric")
        row = row_in(rows, **dict(zip(keys, names, strict=True)))
        assert tuple(row[key] for key in ("best", "beats", "level with", "behind")) == words


def test_gains_are_positive_where_it_is_better() -> None:
    rows = tables(section(page(TEXTS), "Is LRP (AH+LN) best among the paper's methods?"))[0]
    row = row_in(rows, dataset="Semaine", metric="AUAC")
    assert row["over GI"] == "**.050**<br>[.046,&nbsp;.054]"
    assert row["over LRP (AH)"] == "-.001<br>[-.005,&nbsp;.003]"
    assert row_in(rows, dataset="Semaine", metric="AU-MSE")["over GI"] == "**-1.00**<br>[-1.10,&nbsp;-.90]"
    rows = tables(section(page(GRAPHS), "Is LRP (AH+LN) best among the paper's methods?"))[0]
    assert row_in(rows, dataset="BACE", masking="token", metric="AUAC")["over GI"] == "**.170**<br>[.166,&nbsp;.174]"
    assert row_in(rows, dataset="BACE", masking="induced", metric="AUAC")["over GAE"] == ".001<br>[-.003,&nbsp;.005]"


@KINDS
def test_without_the_papers_own_method_there_is_no_verdict(kind: str) -> None:
    text = page([MADE[kind](missing=(OURS[kind],))])
    row = tables(section(text, "Is LRP (AH+LN) best among the paper's methods?"))[0][0]
    assert {cell for key, cell in row.items() if key not in ("dataset", "masking", "metric")} == {"-"}


def test_what_is_released_is_compared_in_both_metrics() -> None:
    auac, au_mse = tables(section(page(TEXTS), "What the released code does differently"))
    assert row_in(auac, method="A-Last, all rows")["SST-2"] == (
        "code&nbsp;.450<br>defined&nbsp;.650<br>**-.200**<br>[-.204,&nbsp;-.196]"
    )
    assert row_in(au_mse, method="LRP (AH+LN), gamma .01")["Semaine"].startswith("code&nbsp;3.60<br>defined&nbsp;10.0")
    assert "**6.40**" in row_in(au_mse, method="LRP (AH+LN), gamma .01")["Semaine"]  # less is better
    level = dataclasses.replace(TEXTS[0].evaluation, pairs=tuple(
        dataclasses.replace(pair, low=-0.5, high=0.5) for pair in TEXTS[0].evaluation.pairs
    ))  # fmt: skip
    text = page([dataclasses.replace(TEXTS[0], evaluation=level)])
    assert "**" not in section(text, "What the released code does differently")
    assert "released code" not in page(GRAPHS)


def test_models_differ_seed_by_seed() -> None:
    auac, au_mse = tables(section(page(TEXTS), "Models differ"))
    assert auac[0]["GI"] == ".800,&nbsp;.900<br>±&nbsp;.050"
    assert [row["LRP (AH+LN) better than GI"] for row in auac] == ["on every one", "not on seed 1"]
    assert [row["LRP (AH+LN) better than GI"] for row in au_mse] == ["on every one", "not on seeds 0 and 1"]
    auac, au_mse = tables(section(page(GRAPHS), "Models differ"))
    row = row_in(auac, dataset="BACE", masking="token")
    assert row["GI"] == ".530,&nbsp;.830<br>±&nbsp;.150"
    assert row["LRP (AH+LN) better than GI"] == "not on seed 1"
    assert row_in(au_mse, dataset="BACE", masking="token")["LRP (AH+LN) better than GI"] == "on every one"
    assert row_in(auac, dataset="MNIST superpixels", masking="token")["LRP (AH+LN) better than GI"] == "on every one"


@pytest.mark.parametrize(("kind", "mean", "reached"), [("texts", ".800", "80.0%"), ("graphs", ".530", "80.0%")])
def test_one_model_has_no_spread(kind: str, mean: str, reached: str) -> None:
    text = page([MADE[kind](seeds=1)])
    assert "with seed 0." in text
    assert tables(section(text, "Models differ"))[0][0]["GI"] == mean
    assert tables(section(text, "Models"))[0][0]["test"] == reached


def test_ledgers_are_shown() -> None:
    rows = tables(section(page(TEXTS), "Where relevance goes").replace("\\|", "!"))[0]
    assert [row["rules"] for row in rows[:5]] == ["GI", "LRP (AH)", "LRP (LN)", "LRP (AH+LN)", "exact"]
    assert rows[0] == {
        "dataset": "SST-2",
        "rules": "GI",
        "corr.": ".988",
        "slope": ".877",
        "distance from the output": ".123",
    }
    assert rows[5] == {
        "dataset": "Semaine",
        "rules": "GI",
        "corr.": "-",
        "slope": "-",
        "distance from the output": ".123",
    }
    rows = tables(section(page(GRAPHS), "Where relevance goes").replace("\\|", "!"))[0]
    assert [row["rules"] for row in rows[:5]] == ["GI", "LRP (AH)", "LRP (LN)", "LRP (AH+LN)", "exact"]
    assert row_in(rows, dataset="BACE", rules="exact") == {
        "dataset": "BACE", "rules": "exact", "corr.": ".880", "slope": ".700", "corr. without biases": ".970",
        "!logit!": "2.00", "!nodes!": "1.10", "!virtual node!": ".500", "!biases!": ".800", "!gap!": "2e-16",
        "largest !gap!": "4e-15",
    }  # fmt: skip
    assert row_in(rows, dataset="BACE", rules="GI")["largest !gap!"] == "1.25"


# What was run


def test_models_are_told_with_what_the_paper_reached() -> None:
    def shown(results: list[Any]) -> list[dict[str, str]]:
        rows = tables(section(page(results), "Models"))[0]
        return [{key: " ".join(plain(cell)) for key, cell in row.items()} for row in rows]

    sst2, semaine = shown(TEXTS)
    assert sst2 == {
        "dataset": "SST-2", "classes": "2", "samples": "train 67,324 validation 872 test 1,821", "evaluated": "1,234",
        "epoch kept": "3, 3 of 8", "measure": "accuracy", "test": "81.5% (80.0, 83.0)", "validation": "81.0% to 82.0%",
        "most frequent class": "50.1%", "the paper's": "81.3%",
    }  # fmt: skip
    assert semaine["the paper's"] == "-"
    assert shown([texts.result(evaluated_tokens=256)])[0]["evaluated"] == "1,234 (256 tokens)"
    bace, mnist = shown(GRAPHS)
    assert bace == {
        "dataset": "BACE", "classes": "2", "samples": "train 1,210 validation 151 test 152",
        "evaluated": "152 (one node at a time)", "epoch kept": "180, 181 of 1,000",
        "measure": "ROC-AUC", "test": "81.5% (80.0, 83.0)", "validation": "75.0% to 76.0%",
        "most frequent class": "60.5%", "the paper's": "83.5%",
    }  # fmt: skip
    assert (mnist["measure"], mnist["test"], mnist["validation"]) == ("accuracy", "96.0% (95.0, 97.0)", "-")
    assert mnist["the paper's"] == "97.2%"


def test_settings_of_the_models_are_listed() -> None:
    text = section(page(GRAPHS), "Models")
    assert "`learning_rate` 0.0002, `epochs` 1000, `batch_size` 64, `weight_decay` 0.01, `schedule` linear" in text
    assert "`hold_out` no, `keep` last, `average` 0." in text
    assert "`parameters` 97000" in text
    assert "`parameters`" not in page([graphs.result(parameters=None)])
    assert "`pre_norm` no" in page([graphs.result(shape={**GRAPHS[0].shape, "pre_norm": False})])
    assert "- SST-2: `learning_rate` 2e-05, `weight_decay` 0, `embeddings` all-MiniLM-L6-v2" in page(TEXTS)


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
    text = section(page(GRAPHS, tried=tried), "Models")
    assert "### Trainings tried" in text
    rows = tables(text)[1]
    assert [row["training"] for row in rows] == ["**paper**", "slow", "all"]
    assert rows[0] | {"training": ""} == {
        "dataset": "BACE", "training": "", "settings": "-", "measure": "ROC-AUC", "seeds": "0, 1",
        "validation": "70.0, 80.0 %", "test": "75.0, 75.0 %",
    }  # fmt: skip
    assert rows[1]["settings"] == "`learning_rate` 1e-05, `pre_norm` no"
    assert (rows[2]["settings"], rows[2]["validation"], rows[2]["test"]) == ("`hold_out` no", "-", "97.0 %")
    assert "Trainings tried" not in page(GRAPHS)
    assert "Bold: the settings" not in page(GRAPHS, tried=tried[2:3])
    trial = {"name": "sst2", "tag": "fast", "seed": 0, "recipe": {"learning_rate": 0.5}, "validation_accuracy": 0.8}
    row = tables(section(page(TEXTS, tried=[trial]), "Models"))[1][0]
    assert (row["settings"], row["measure"], row["validation"], row["test"]) == (
        "`learning_rate` 0.5", "accuracy", "80.0 %", "-",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("texts", ("# Tables 1 and 2 of Ali et al. (2022), texts", "frozen embeddings of `all-MiniLM-L6-v2`,",
                   "including special tokens", "`unk`", "10 steps")),
        ("graphs", ("# Tables 1 and 2 of Ali et al. (2022), graphs", "Graphormers",
                    "BACE one node at a time on 152 test graphs and MNIST superpixels 25 steps on 1,000 test graphs",
                    "- `token`: no other node", "- `induced`: degrees", "- `blank`: a removed node stays",
                    "virtual node always stays", "2 on BACE and 10 on MNIST", "`intensity` is the order of")),
    ],
)  # fmt: skip
def test_the_start_says_what_was_run(kind: str, parts: tuple[str, ...]) -> None:
    text = page(RESULTS[kind]).partition("## Models")[0]
    for part in (*parts, "seeds 0 and 1", "true class", "`paper`", "conserva 0.1.0, torch 2.13.0, on cuda"):
        assert part in text, part


def test_what_was_changed_is_in_the_start_and_in_the_command() -> None:
    released = page([texts.result(recipe={**TEXTS[0].recipe, "as_released": True})])
    assert "with the quirks of the authors' released code" in released
    assert "--out results/text --as-released" in released
    assert "quirks" not in page(TEXTS).partition("## Models")[0]
    assert "--post-norm" in page([graphs.result(shape={**GRAPHS[0].shape, "pre_norm": False})])
    assert "--post-norm" not in page(GRAPHS)
    one_mask = {"token": GRAPHS[0].evaluations["token"]}
    assert "`induced`" not in page([dataclasses.replace(GRAPHS[0], evaluations=one_mask)])
    assert "`intensity`" not in page(GRAPHS[:1])


@KINDS
def test_notes_and_quick_runs(kind: str) -> None:
    text = page(RESULTS[kind], "Look *here*.\n")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE)[1:4] == ["Models", "Notes", "Table 1: AUAC"]
    assert section(text, "Notes").strip() == "Look *here*."
    assert "## Notes" not in page(RESULTS[kind])
    assert QUICK not in text
    assert f"> **{QUICK}**" in page([MADE[kind](provenance={"quick": True})])


@KINDS
def test_the_page_holds_no_hole_and_no_path(kind: str) -> None:
    bare = {"texts": {"sentences": ()}, "graphs": {"examples": (), "books": ()}}[kind]
    paper = texts.PAPER if kind == "texts" else graphs.PAPER
    make = MADE[kind]
    for some in (
        RESULTS[kind], RESULTS[kind][1:], [make(**bare)], [make(missing=(REFUSED, OURS[kind]))], [make(missing=paper)]
    ):  # fmt: skip
        text = page(some)
        assert not re.search(r"\b(nan|inf|None|True|False)\b", text)
        assert not re.search(r"(?<![\w<.])/\w|file:", text)
    assert "- Semaine: `a-flow` does not apply: needs &lt;maps&gt; &amp; a tokenizer." in page(TEXTS)
    assert "- BACE token: `a-flow` does not apply: needs &lt;maps&gt;." in page([graphs.result(missing=(REFUSED,))])
