"""What is said about the graph experiment: read off the numbers, and different where they are."""

from __future__ import annotations

import dataclasses

import pytest

from conserva.paper.experiments import findings
from conserva.paper.experiments.graph_plan import GRAPH_OURS
from conserva.paper.experiments.graph_result import GraphResult
from conserva.paper.experiments.published import published
from conserva.paper.views.graph_discussion import graph_discussion
from conserva.views.evaluation_terminal import _bare, short
from made_up_graphs import AUAC, BOTH, PAPER, moved, result, with_mean


def said(results: list[GraphResult], about: str) -> str:
    lines = [line for line in graph_discussion(results).splitlines() if line.startswith(f"- **{about}")]
    assert len(lines) <= 1
    return lines[0] if lines else ""


def test_who_is_best_follows_the_intervals() -> None:
    text = said(BOTH, "Activation")
    assert (
        "has the best mean of the paper's methods in 5 of 6 (BACE token, BACE induced, BACE blank, MNIST token" in text
    )
    assert "leaving out 0, in 4 of 6 (BACE token, BACE blank, MNIST token, MNIST induced)" in text
    assert "in BACE token GAE by .100 [.096, .104]; in BACE induced GAE by .001 [-.003, .005]" in text
    assert "Surely ahead of it: in MNIST blank A-Last by .130 [.126, .134], LRP (AH) by .010 [.006, .014]." in text
    behind = moved(BOTH[0], "token", "auac", "gae", GRAPH_OURS, 0.02)
    text = said([behind, BOTH[1]], "Activation")
    assert "leaving out 0, in 3 of 6 (BACE blank" in text
    assert "Surely ahead of it: in BACE token GAE by .020 [.019, .021]; in MNIST blank" in text
    assert "No other is surely ahead of it." in said(BOTH[:1], "Activation")
    text = said(BOTH, "Pruning")
    assert "in 2 of 6 (BACE token, BACE blank)" in text
    assert "in MNIST token A-Flow by 22.0 [21.9, 22.1], Rollout by 16.0 [15.9, 16.1]" in text


def test_whether_the_masking_decides_follows_the_means() -> None:
    text = said(BOTH, "Does the masking decide? MNIST")
    assert (
        "goes to LRP (AH+LN) under token and induced and A-Last under blank: the masking decides who is first" in text
    )
    assert "1.00 between token and induced" in text
    assert "so the order as a whole is not kept, least between token and blank" in text
    text = said(BOTH, "Does the masking decide? BACE")
    assert "LRP (AH+LN) has the best mean of the paper's methods under every masking." in text
    assert "so the order as a whole is kept (.800 or more)." in text
    other = said([with_mean(BOTH[0], "blank", "auac", "gi", 0.9)], "Does the masking decide? BACE")
    assert "goes to LRP (AH+LN) under token and induced and GI under blank" in other
    one_mask = dataclasses.replace(BOTH[0], evaluations={"token": BOTH[0].evaluations["token"]})
    assert said([one_mask], "Does the masking decide") == ""


@pytest.mark.parametrize(("by", "place"), [(-0.3, "surely worse"), (0.0005, "level with it"), (0.2, "surely better")])
def test_brightness_is_the_control_where_superpixels_are_blanked(by: float, place: str) -> None:
    one = moved(BOTH[1], "blank", "auac", GRAPH_OURS, "intensity", by)
    text = said([BOTH[0], one], "Brightness, MNIST blank")
    assert f"gets .770 and LRP (AH+LN) .470, {place} (" in text
    assert ("surely beaten by LRP (AH+LN)" in text) == (by == 0.2)
    assert ("no method surely beats it. By AU-MSE" in text) == (by != 0.2)
    assert said(BOTH[:1], "Brightness") == ""


def test_gi_is_held_against_a_random_order() -> None:
    text = said(BOTH, "GI against")
    assert "By AUAC GI is surely better in BACE token, BACE induced, BACE blank, MNIST blank; surely worse in " in text
    assert "surely worse in MNIST token, MNIST induced. By AU-MSE GI is surely better in MNIST induced" in text
    assert "BACE .646 against .624, MNIST .942 against .324" in text
    level = said([moved(BOTH[0], "token", "auac", "gi", "random", 0.0)], "GI against")
    assert "; level in BACE token." in level


def test_the_papers_order_and_numbers_are_held_against_these() -> None:
    text = said(BOTH, "Beside the paper, BACE")
    theirs = {method: published("auac", "bace", method).value for method in PAPER}  # type: ignore[union-attr]
    means = dict(zip(PAPER, AUAC["bace", "token"], strict=True))
    expected = findings.rank_correlation(means, theirs)
    away = sum(abs(means[method] - theirs[method]) for method in PAPER) / len(PAPER)
    assert f"by AUAC {_bare(short(expected))} under token" in text
    assert f"lie in the mean {_bare(short(away))} under token" in text
    assert "nearest under token" in text
    assert "LRP (AH+LN) .707 in the paper, here .700 token, .601 induced, .640 blank" in text
    assert "nearest under blank" in said(BOTH, "Beside the paper, MNIST")
    assert "nearest under token" in said([with_mean(BOTH[1], "blank", "auac", "gi", 5.0)], "Beside the paper")


def test_a_cell_that_the_paper_left_empty_is_told() -> None:
    text = said(BOTH, "A-Flow on MNIST superpixels")
    assert ".520 and 74.0 under token (by AUAC place 2 of 8), .330 and 140 under induced (by AUAC place 2 of 8)" in text
    assert ".200 and 143 under blank (by AUAC place 8 of 8)." in text
    assert "leave this cell empty" not in graph_discussion(BOTH[:1])
    assert said([result("mnist", ("a-flow",))], "A-Flow") == ""


def test_the_best_of_all_methods_and_two_beside_the_papers_own() -> None:
    assert "by AUAC, LRP (AH+LN) in BACE token, BACE induced, BACE blank." in said(BOTH[:1], "All methods")
    other = with_mean(BOTH[0], "blank", "auac", "exact", 0.9)
    assert "LRP (AH+LN) in BACE token, BACE induced; exact in BACE blank." in said([other], "All methods")
    assert "surely better in 0 of 3, surely worse in all 3" in said(BOTH[:1], "LRP (LN) beside LRP (AH+LN)")
    other = moved(BOTH[0], "token", "auac", "ln", GRAPH_OURS, 0.0125)
    assert "to +.013; it is surely better in 1 of 3 (BACE token)" in said([other], "LRP (LN) beside LRP (AH+LN)")


def test_books_are_read() -> None:
    text = said(BOTH, "Books, BACE")
    assert "largest |gap| is 4e-15, which is rounding" in text
    assert "correlates with the logit .100 under GI, .880 under LRP (AH+LN) and .880 under exact" in text
    assert "biases carry .800 (40% of the mean |logit|) and the virtual node .500 (25% of the mean |logit|)" in text
    wide = tuple(dataclasses.replace(one, largest_gap=0.01) for one in BOTH[0].books)
    assert "1e-02, which is more than rounding" in said([dataclasses.replace(BOTH[0], books=wide)], "Books")
    assert said([dataclasses.replace(BOTH[0], books=())], "Books") == ""


def test_models_are_held_against_the_papers() -> None:
    text = said(BOTH, "Models")
    assert "BACE ROC-AUC 81.5%, 2.0 points below the paper's 83.5%; its models lie from 80.0% to 83.0%" in text
    assert "MNIST superpixels accuracy 96.0%, 1.2 points below the paper's 97.2%" in text
    better = tuple(dataclasses.replace(one, test_roc_auc=0.9) for one in BOTH[0].trained)
    assert "6.5 points above the paper's" in said([dataclasses.replace(BOTH[0], trained=better)], "Models")


@pytest.mark.parametrize("method", [*PAPER, "ln", "exact", "intensity"])
def test_what_is_about_a_missing_method_is_left_out(method: str) -> None:
    text = graph_discussion([result("bace", (method,)), result("mnist", (method,))])
    gone = {
        GRAPH_OURS: "**Activation", "gi": "**GI against", "random": "**GI against", "ln": "**LRP (LN) beside",
        "exact": "**exact beside", "intensity": "**Brightness", "a-flow": "**A-Flow on",
    }  # fmt: skip
    assert gone.get(method, "**Nothing") not in text
    assert "**Does the masking decide? BACE" in text


# Findings


def test_rank_correlation_is_spearmans() -> None:
    a = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "only here": 9.0}
    assert findings.rank_correlation(a, {"a": 10, "b": 20, "c": 30, "d": 400}) == pytest.approx(1)
    assert findings.rank_correlation(a, {"a": 9, "b": 3, "c": 1, "d": 0.5}) == pytest.approx(-1)
    assert findings.rank_correlation(a, {"a": 1, "b": 3, "c": 2, "d": 4}) == pytest.approx(0.8)  # 1 - 6 * 2 / (4 * 15)
    assert findings.rank_correlation(a, {"a": 1, "b": 2, "c": 2, "d": 3}) == pytest.approx(
        0.9486833
    )  # ties share ranks
    assert findings.rank_correlation(a, {"a": 1, "b": 1, "c": 1, "d": 1}) is None
    assert findings.rank_correlation(a, {}) is None
