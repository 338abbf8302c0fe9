"""Whether results agree with the paper's columns: verdicts, signs, both readings, and how the page says it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from scipy.stats import kendalltau

import made_up_experiments as texts
import made_up_graphs as graphs
from conserva.evaluation.result import Evaluation, Pair
from conserva.paper.experiments.agreement import AGREES, DISAGREES, IN_ORDER, OPEN, Agreement, agreements, kendall
from conserva.paper.experiments.published import published
from conserva.paper.experiments.rows import OURS
from conserva.paper.views.agreement import agreement, counted
from conserva.paper.views.page import AGREEMENT, page
from markdown_tables import row_in, section, tables

SST2, SEMAINE = texts.result("sst2"), texts.result("semaine", ("a-flow",))
TEXTS = [SST2, SEMAINE]


def found(metric: str, some: list[Any] = TEXTS) -> dict[str, Agreement]:
    return {f"{one.column.title} {one.theirs}": one for one in agreements(some, metric)}


def with_pairs(low: float, mean: float, high: float) -> Evaluation:
    """Return the evaluation of SST-2 in which the paper's method is by so much better than each other one."""

    def pair(one: Pair) -> Pair:
        if texts.OURS not in (one.a, one.b) or one.metric != "auac":
            return one
        limits = (low, mean, high) if one.a == texts.OURS else (-high, -mean, -low)
        return dataclasses.replace(one, low=limits[0], mean=limits[1], high=limits[2])

    return dataclasses.replace(SST2.evaluation, pairs=tuple(pair(one) for one in SST2.evaluation.pairs))


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        ((0.1, 0.2, 0.3), AGREES),
        ((-0.1, 0.2, 0.3), IN_ORDER),
        ((-0.3, -0.2, 0.1), OPEN),
        ((-0.3, -0.2, -0.1), DISAGREES),
    ],
)
def test_verdicts_follow_the_intervals(limits: tuple[float, float, float], verdict: str) -> None:
    [one] = agreements([dataclasses.replace(SST2, evaluation=with_pairs(*limits))], "auac")
    assert one.verdict == verdict
    assert (one.gain.low, one.gain.mean, one.gain.high) == limits


def test_one_method_that_is_surely_ahead_decides() -> None:
    one = found("au_mse")["Semaine semaine"]
    assert (one.verdict, one.best, one.rival) == (DISAGREES, "GI", "GI")
    assert one.gain.mean == pytest.approx(-1.0)  # less is better: GI's 9 is 1 better than 10


def test_leads_are_positive_in_both_metrics() -> None:
    auac, au_mse = found("auac")["SST-2 sst2"], found("au_mse")["SST-2 sst2"]
    assert (auac.first, auac.second, auac.lead) == (OURS, "LRP (AH)", pytest.approx(0.908 - 0.855))
    assert (au_mse.first, au_mse.second, au_mse.lead) == (OURS, "LRP (AH)", pytest.approx(2.027 - 1.564))
    assert auac.gain.mean == pytest.approx(0.9 - 0.82)
    assert au_mse.gain.mean == pytest.approx(2.1 - 1.5)


def test_a_method_that_the_authors_left_out_may_be_ahead() -> None:
    one = found("au_mse", [graphs.result("mnist")])["MNIST token mnist"]
    assert published("au_mse", "mnist", "a-flow") is None
    assert (one.best, one.rival, one.verdict) == ("A-Flow", "A-Flow", DISAGREES)


def test_both_readings_of_columns_that_may_be_exchanged() -> None:
    every = found("auac")
    assert list(every) == ["SST-2 sst2", "Semaine semaine", "Semaine meld-s"]
    assert [one.exchanged for one in every.values()] == [False, False, True]
    printed, other = list(every.values())[1:]
    assert (printed.gain, printed.verdict, printed.best) == (other.gain, other.verdict, other.best)
    for one in (printed, other):
        values = {row.title: published("auac", one.theirs, row.method) for row in SEMAINE.rows if row.group == "paper"}
        distances = [
            abs(value.value - mean)
            for title, value in values.items()
            if value is not None and (mean := one.column.mean("auac", title)) is not None
        ]
        assert len(distances) == 7
        assert one.distance == pytest.approx(sum(distances) / 7)


def test_levels_of_au_mse_are_compared_as_shares_of_randoms() -> None:
    scaled = dataclasses.replace(
        SST2,
        evaluation=dataclasses.replace(
            SST2.evaluation,
            methods=tuple(
                dataclasses.replace(one, au_mse=dataclasses.replace(one.au_mse, mean=7 * one.au_mse.mean))
                for one in SST2.evaluation.methods
            ),
        ),
    )
    [one], [other] = agreements([SST2], "au_mse"), agreements([scaled], "au_mse")
    assert one.distance == pytest.approx(other.distance)
    assert one.distance > 0.01


@pytest.mark.parametrize(
    "pairs",
    [
        [(1, 1), (2, 2), (3, 3)],
        [(1, 3), (2, 2), (3, 1)],
        [(0.942, 0.3), (0.942, 0.2), (0.948, 0.7), (0.3, 0.5), (0.8, 0.5)],
        [(i % 4, (7 * i) % 5) for i in range(9)],
    ],
)
def test_kendall_is_scipys(pairs: list[tuple[float, float]]) -> None:
    assert kendall(pairs) == pytest.approx(kendalltau(*zip(*pairs, strict=True)).statistic)


def test_an_order_of_ties_has_no_correlation() -> None:
    assert kendall([(1.0, 1.0), (1.0, 2.0)]) is None


@pytest.mark.parametrize("missing", [texts.PAPER, [name for name in texts.PAPER if name != texts.OURS]])
def test_columns_without_methods_to_compare_are_left_out(missing: tuple[str, ...]) -> None:
    assert agreements([texts.result("sst2", tuple(missing))], "auac") == []
    assert agreement([texts.result("sst2", tuple(missing))]) == ""


def test_a_dataset_that_is_not_in_the_paper_has_no_section() -> None:
    assert AGREEMENT not in page([dataclasses.replace(SST2, dataset="other")])


# The page


@pytest.mark.parametrize("some", [TEXTS, graphs.BOTH], ids=["texts", "graphs"])
def test_the_page_has_a_line_for_each_column(some: list[Any]) -> None:
    text = section(page(some), AGREEMENT)
    for metric, rows in zip(("auac", "au_mse"), tables(text), strict=True):
        expected = agreements(some, metric)
        assert [row["verdict"].strip("*") for row in rows] == [one.verdict for one in expected]
        assert ["**" in row["verdict"] for row in rows] == [one.verdict == AGREES for one in expected]
        assert [row["first here"].replace("&nbsp;", " ") for row in rows] == [one.best for one in expected]


def test_cells_are_worded() -> None:
    auac, au_mse = tables(section(page(TEXTS), AGREEMENT))
    assert row_in(auac, dataset="SST-2") == {
        "dataset": "SST-2", "verdict": "**agrees**", "first in the paper": "LRP&nbsp;(AH+LN)",
        "first here": "LRP&nbsp;(AH+LN)", "ahead in the paper": ".053<br>over&nbsp;LRP&nbsp;(AH)",
        "the same method here": "**.080**<br>[.076,&nbsp;.084]<br>over&nbsp;LRP&nbsp;(AH)",
        "rank correlation": ".929", "distance": f"{found('auac')['SST-2 sst2'].distance:.3f}".lstrip("0"),
    }  # fmt: skip
    assert au_mse[2]["dataset"] == "Semaine<br>beside&nbsp;the&nbsp;paper's&nbsp;Meld-S"
    assert au_mse[2]["the same method here"] == "**-1.00**<br>[-1.10,&nbsp;-.90]<br>over&nbsp;GI"


def test_columns_are_counted_as_printed() -> None:
    """Semaine beside the other column is no further column."""
    said = counted(TEXTS)
    assert said.startswith("By AUAC, of 2 columns: agrees in 1, disagrees weakly in 1; rank correlation ")
    assert "By AU-MSE, of 2 columns: agrees in 1, disagrees in 1;" in said
    assert "of 1 column: agrees in 1; rank correlation 1.00." in counted([SST2])


def test_the_reading_is_explained_where_columns_may_be_exchanged() -> None:
    text = section(page(TEXTS), AGREEMENT)
    assert "The paper's text gives 13,708 utterances of Semaine (the data have 70,017)." in text
    assert "its columns of Meld-S and Semaine may be exchanged" in text
    printed, other = (found("auac")[f"Semaine {name}"].distance for name in ("semaine", "meld-s"))
    assert f"distance is {printed:.3f} as printed and {other:.3f} exchanged".replace("0.", ".") in text
    assert "exchanged" not in section(page([SST2]), AGREEMENT)


def test_all_verdicts_that_are_used_are_explained() -> None:
    for some in (TEXTS, graphs.BOTH):
        text = agreement(some)
        used = {one.verdict for metric in ("auac", "au_mse") for one in agreements(some, metric)}
        for verdict, other in itertools.product(used, {AGREES, IN_ORDER, OPEN, DISAGREES} - used):
            assert f"- {verdict}: " in text
            assert f"- {other}: " not in text
