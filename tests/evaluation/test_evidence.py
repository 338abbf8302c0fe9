"""Agreement with known evidence against plain loops, and its result."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import conserva
from conserva.evaluation.evidence import MEASURES, Evidence, measure_evidence
from conserva.evaluation.evidence_measures import average_precision, iou, pointing_game, top1
from conserva.integrations.eraser import token_iou
from conserva.views import evidence_terminal

pytestmark = pytest.mark.usefixtures("few_resamples")

CASES = st.lists(st.tuples(st.sampled_from([-1.5, 0.0, 0.1, 2.0]), st.booleans()), min_size=1, max_size=6).filter(
    lambda case: any(flag for _, flag in case)
)


def slow_pointing_game(scores: list[float], evidence: list[bool]) -> float:
    """The mean over all orders of whether the first of the highest scores is evidence."""
    orders = list(itertools.permutations(range(len(scores))))
    return sum(evidence[max(order, key=lambda i: scores[i])] for order in orders) / len(orders)


def slow_top1(scores: list[float], evidence: list[bool]) -> float:
    """The worst order decides."""
    orders = itertools.permutations(range(len(scores)))
    return float(all(evidence[max(order, key=lambda i: scores[i])] for order in orders))


def slow_iou(scores: list[float], evidence: list[bool]) -> float:
    """The overlap with what orders choose on average, each feature by its share of all orders."""
    orders, size = list(itertools.permutations(range(len(scores)))), sum(evidence)
    share = [0.0] * len(scores)
    for order in orders:
        for i in sorted(order, key=lambda i: -scores[i])[:size]:  # sorted is stable
            share[i] += 1 / len(orders)
    both = sum(min(share[i], evidence[i]) for i in range(len(scores)))
    return both / sum(max(share[i], evidence[i]) for i in range(len(scores)))


def slow_average_precision(scores: list[float], evidence: list[bool]) -> float:
    total = 0.0
    for i, flag in enumerate(evidence):
        if flag:
            above = [j for j, score in enumerate(scores) if score >= scores[i]]
            total += sum(evidence[j] for j in above) / len(above)
    return total / sum(evidence)


SLOW: dict[str, Callable[[list[float], list[bool]], float]] = {
    "top1": slow_top1,
    "pointing_game": slow_pointing_game,
    "iou": slow_iou,
    "average_precision": slow_average_precision,
}


@pytest.mark.parametrize("name", MEASURES)
@settings(deadline=None, max_examples=60)
@given(case=CASES)
def test_measures_are_those_of_a_loop(name: str, case: list[tuple[float, bool]]) -> None:
    scores, evidence = map(list, zip(*case, strict=True))
    found = MEASURES[name](scores, evidence)
    assert found == pytest.approx(SLOW[name](scores, evidence), abs=1e-9)
    assert found == pytest.approx(MEASURES[name](scores[::-1], evidence[::-1]), abs=1e-12)
    assert MEASURES[name](np.array(scores) * 3 + 1, np.array(evidence, dtype=int)) == pytest.approx(found, abs=1e-12)
    assert math.isnan(MEASURES[name](scores, [False] * len(scores)))


@settings(deadline=None, max_examples=40)
@given(CASES)
def test_without_ties_iou_is_that_of_rationales(case: list[tuple[float, bool]]) -> None:
    evidence = [flag for _, flag in case]
    scores = np.random.default_rng(len(case)).permutation(len(case)).astype(float)
    chosen = scores >= np.sort(scores)[-sum(evidence)]
    assert iou(scores, evidence) == token_iou(chosen, evidence)


@pytest.mark.parametrize("at", range(4))
def test_equal_scores_do_not_profit_from_positions(at: int) -> None:
    evidence = [i == at for i in range(4)]
    flat = [0.5] * 4
    assert (top1(flat, evidence), pointing_game(flat, evidence), average_precision(flat, evidence)) == (0, 0.25, 0.25)
    assert iou(flat, evidence) == pytest.approx(0.25 / 1.75)
    assert [measure(flat, [True] * 4) for measure in MEASURES.values()] == [1] * 4


@pytest.mark.parametrize(
    ("scores", "evidence", "says"),
    [
        ([1.0, math.nan], [True, False], r"scores=.*finite numbers"),
        ([], [], r"scores=.*one or more"),
        ([1.0, 2.0], [True, 2], r"evidence=.*True or False for each feature"),
        (
            [1.0, 2.0],
            [True],
            "scores has 2 features and evidence 1: give one entry for each feature of the same sample",
        ),
    ],
)
def test_wrong_arrays(scores: list[float], evidence: list[bool], says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        iou(scores, evidence)
    with pytest.raises(conserva.Error, match=f"Sample 2, a: {says}"):
        measure_evidence({"a": [[1.0], scores]}, [[True], evidence or [True]])


def made_up(samples: int = 60) -> tuple[dict[str, list[np.ndarray]], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    evidence = [np.arange(n) < n // 3 for n in rng.integers(2, 12, samples)]
    scores = {
        "random": [rng.random(len(one)) for one in evidence],
        "random:seed=1": [rng.random(len(one)) for one in evidence],
        "weak": [one + 2 * rng.normal(size=len(one)) for one in evidence],
        "strong": [one + 0.4 * rng.normal(size=len(one)) for one in evidence],
        "flat": [np.zeros(len(one)) for one in evidence],
        "control": [one.astype(float) for one in evidence],
    }
    return scores, evidence


def test_the_result_has_means_intervals_and_differences() -> None:
    scores, evidence = made_up()
    found = measure_evidence(scores, evidence, references=["control"], provenance={"model": "x"})
    kept = [i for i, one in enumerate(evidence) if one.any()]
    assert 0 < found.without_evidence == len(evidence) - len(kept)
    assert found.samples == len(kept)
    assert found.share == pytest.approx(np.mean([evidence[i].mean() for i in kept]))
    rows = {row.method: row for row in found.methods}
    assert list(rows) == ["random", "weak", "strong", "flat", "control"]
    for name, measure in MEASURES.items():
        for method, row in rows.items():
            names = ["random", "random:seed=1"] if method == "random" else [method]
            expected = np.mean([[measure(scores[each][i], evidence[i]) for i in kept] for each in names])
            interval = getattr(row, name)
            assert interval.mean == pytest.approx(expected)
            assert interval.low <= interval.mean <= interval.high
        assert getattr(rows["control"], name).mean == 1
        assert found.surely_best(name) is rows["strong"]  # the reference is not ranked
        assert found.difference(name, "flat", "strong").high < 0
    assert rows["flat"].pointing_game.mean == pytest.approx(found.share)
    assert len(found.pairs) == 10 * 4
    assert found.ranked("iou")[0].method == "strong"
    assert Evidence.from_json(found.to_json()) == found
    assert measure_evidence(scores, evidence, seed=1) != found


def test_a_lead_that_may_be_chance_is_not_claimed() -> None:
    scores, evidence = made_up(12)
    twins = {"a": scores["weak"], "b": [-one for one in scores["weak"]][:6] + scores["weak"][6:], "c": scores["weak"]}
    found = measure_evidence(twins, evidence)
    assert found.surely_best("iou") is None
    assert found.difference("iou", "a", "c").high == 0


def test_it_is_shown() -> None:
    found = measure_evidence(*made_up(), references=["control"])
    for width, system in ((60, None), (140, "truecolor")):
        out = io.StringIO()
        evidence_terminal.show(found, Console(file=out, width=width, color_system=system, force_terminal=bool(system)))
        text = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
        assert max(map(len, text.splitlines())) <= width
        flat = " ".join(text.split())
        assert f"{found.samples} samples · evidence" in flat
        assert f"{found.without_evidence} without evidence left out" in flat
        assert "Surely the best: “strong” on top-1, pointing game, IOU, average precision." in flat
        for row in found.methods:
            assert re.sub(r"\b0\.", ".", f"{row.iou.mean:.3f}")[:3] in flat
        assert "pointing game ↑" in flat
    none = measure_evidence({"flat": [[0.0, 0.0]]}, [[True, False]])
    assert evidence_terminal.verdict(none) == "On these samples no method is surely the best on any measure."


def test_wrong_calls() -> None:
    with pytest.raises(conserva.Error, match=r"scores\['a'\] has 1 samples and evidence 2"):
        measure_evidence({"a": [[1.0]]}, [[True], [True]])
    with pytest.raises(conserva.Error, match="evidence is empty"):
        measure_evidence({"a": [[1.0]]}, [[False]])
    with pytest.raises(conserva.Error, match="scores is empty"):
        measure_evidence({}, [])
    with pytest.raises(conserva.Error, match="metric='auac' was not measured"):
        measure_evidence({"a": [[1.0]]}, [[True]]).ranked("auac")
    wrong = measure_evidence({"a": [[1.0]]}, [[True]]).to_json().replace('"share": 1.0', '"share": 2.0')
    with pytest.raises(conserva.Error, match="share is 2"):
        Evidence.from_json(wrong)
