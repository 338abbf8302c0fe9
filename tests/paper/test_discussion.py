"""What is said about the results: read off the numbers, and different where they are."""

import dataclasses

import pytest

from conserva.paper.experiments.plan import OURS
from conserva.paper.experiments.result import TextResult
from conserva.paper.views.discussion import NEEDED, discussion
from made_up_experiments import AH, EXACT, GI, LN, result

SST2, SEMAINE = result("sst2"), result("semaine")


def said(results: list[TextResult], about: str) -> str:
    lines = [line for line in discussion(results).splitlines() if line.startswith(f"- **{about}")]
    assert len(lines) <= 1
    return lines[0] if lines else ""


def moved(one: TextResult, metric: str, a: str, b: str, by: float) -> TextResult:
    """Return the result with another difference of two methods: a minus b."""
    pairs = [
        dataclasses.replace(pair, mean=by, low=by - 0.001, high=by + 0.001)
        if pair.metric == metric and (pair.a, pair.b) == (a, b)
        else dataclasses.replace(pair, mean=-by, low=-by - 0.001, high=-by + 0.001)
        if pair.metric == metric and (pair.a, pair.b) == (b, a)
        else pair
        for pair in one.evaluation.pairs
    ]
    return dataclasses.replace(one, evaluation=dataclasses.replace(one.evaluation, pairs=tuple(pairs)))


def test_who_is_best_is_counted() -> None:
    text = said([SST2, SEMAINE], "Activation")
    assert "the best method of the paper's table on 1 of 2 (SST-2)" in text
    assert "every paired interval leaves out 0 on 1 of 2 (SST-2)" in text
    assert "on SST-2; every paired interval leaves out 0 on SST-2." in said([SST2], "Activation")


def test_methods_ahead_in_pruning_are_named_with_their_datasets() -> None:
    text = said([SST2, SEMAINE], "Pruning")
    assert "surely beats all methods of the table on 1 of 2 (SST-2)" in text
    assert "Ahead of it: GI on Semaine." in text
    assert "Ahead of it" not in said([SST2], "Pruning")


def test_norms_alone_are_held_against_both() -> None:
    text = said([SST2, SEMAINE], "LN alone")
    assert "within .040 of LRP (AH+LN)" in text  # the same on both
    assert "surely ahead on 0 of 2." in text
    assert "differ by 0.001 on SST-2." in text
    ahead = said([SST2, moved(SEMAINE, "auac", OURS, LN, -0.02)], "LN alone")
    assert "within -.020 to .040" in ahead
    assert "surely ahead on 1 of 2 (Semaine)" in ahead


@pytest.mark.parametrize(("by", "expected"), [(-0.02, "on SST-2 (the paper"), (0.02, "on 0 of 1 (the paper")])
def test_attention_alone_is_below_where_the_interval_says_so(by: float, expected: str) -> None:
    text = said([moved(SST2, "auac", AH, GI, by)], "AH alone")
    assert expected in text
    assert "SST-2 .855 against .847" in text


def test_what_exact_adds_is_the_pooler() -> None:
    text = said([moved(SST2, "auac", EXACT, OURS, 0.0123), moved(SEMAINE, "auac", EXACT, OURS, -0.0004)], "The tanh")
    assert "The AUAC changes by -.000 to +.012." in text
    assert "slope of sum on output is .877 under AH+LN and .877 under `exact`" in text


def test_the_two_gae_are_shown_beside_the_papers() -> None:
    text = said([SST2, SEMAINE], "GAE")
    assert "SST-2: definition .780, gradient rollout" in text
    assert "the paper's table .821" in text
    assert "Semaine: definition" not in text


def test_levels_far_from_the_papers_are_listed() -> None:
    text = said([SST2], "Levels")
    assert "SST-2 Random .600 (.664)" in text
    assert "LRP (AH+LN)" not in text  # .900 beside .908
    assert "all-MiniLM" in text


def test_a_classifier_below_the_most_frequent_class_is_told() -> None:
    assert said([SST2], "SST-2") == ""
    assert "always saying the most frequent class gives 99.0%" in said(
        [dataclasses.replace(SST2, majority=0.99)], "SST-2"
    )


def test_accuracy_is_held_against_the_papers() -> None:
    assert "SST-2 81.5% (paper 81.3%)" in said([SST2, SEMAINE], "Accuracy")
    assert said([SEMAINE], "Accuracy") == ""
    assert said([SST2], "IMDB") == ""
    assert "70 %" in said([dataclasses.replace(SST2, dataset="imdb")], "IMDB")


@pytest.mark.parametrize("method", NEEDED)
def test_nothing_is_said_where_a_method_is_missing(method: str) -> None:
    assert discussion([result("sst2", (method,))]) == ""
