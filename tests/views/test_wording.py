"""Sentences that all views share: what a large gap means, and what is left out of an explanation."""

from __future__ import annotations

from dataclasses import replace

import pytest

import conserva
from conserva.engine.ledger import Ledger
from conserva.results.explanation import Sink
from conserva.views.verdict import verdict
from conserva.views.wording import cancellation_note, constants_note, gap_note, hidden_line, ledger_note, ledger_notes
from made_up_explanations import explanation


def with_gap(gap: float, output: float, method: str = "gi", dtype: str = "float32") -> conserva.Explanation:
    one = explanation(["a", "joy"], scores=(0.25, 0.75))
    ledger = Ledger.of(output, output - gap, 0.0, 0.0)
    return replace(one, output=output, ledger=ledger, method=method, provenance={"dtype": dtype})


@pytest.mark.parametrize(
    ("gap", "output", "method", "attributed"),
    [
        (1.0, 2.0, "gi", "of the output +2.000, gi attributes +1.000"),
        (-1.0, -2.0, "ah+ln", "of the output -2.000, ah+ln attributes -1.000"),
        (-1.0, 2.0, "gi", "of the output +2.000, gi attributes +3.000"),
        (30.0, 2.0, "gi", "of the output +2.000, gi attributes -28.000"),
        (1.0, 0.0, "gi", "of the output +0.000, gi attributes -1.000"),
    ],
)
def test_a_large_gap_is_explained(gap: float, output: float, method: str, attributed: str) -> None:
    assert gap_note(with_gap(gap, output, method)) == (
        f"Large gap: {attributed}. Do not read its scores as shares of the output. Under exact the gap is rounding "
        f"error. To see where it arises: conserva audit sentiment --rules {method} --text TEXT."
    )


def test_the_audit_of_a_pair_takes_both_texts() -> None:
    pair = replace(with_gap(1.0, 2.0), sections=(("premise", 1), ("hypothesis", 1)))
    assert gap_note(pair).endswith("conserva audit sentiment --rules gi --text TEXT --with TEXT.")


def test_an_audit_is_not_suggested_for_methods_that_it_does_not_take() -> None:
    assert gap_note(with_gap(1.0, 2.0, "ig:steps=5")).endswith(
        "Under exact the gap is rounding error. That of ig is smaller with more steps."
    )


def test_a_gap_that_is_small_in_a_large_ledger_is_told_if_the_output_is_small() -> None:
    one = with_gap(3.4, 9.0, "attnlrp")
    hidden = replace(one, ledger=Ledger(59.0, -49.0, -4.4, 3.4))
    assert hidden.ledger is not None
    assert hidden.ledger.gap_share < 0.05
    assert gap_note(hidden).startswith("Large gap: of the output +9.000, attnlrp attributes +5.600.")
    rounding = replace(one, output=1e-6, ledger=Ledger(59.0, -59.0, 0.0, 1e-6))
    assert not gap_note(rounding)


@pytest.mark.parametrize("method", ["exact", "exact:gamma=0.1", "exact:bilinear=half"])
def test_a_gap_of_exact_is_rounding(method: str) -> None:
    assert gap_note(with_gap(1.0, 2.0, method, "bfloat16")) == (
        f"Large gap: of the output +2.000, {method} attributes +1.000. These are rounding errors of bfloat16: load the "
        "model in float32, and the ledger closes."
    )


def test_small_gaps_and_methods_without_a_ledger_have_no_note() -> None:
    assert not gap_note(with_gap(0.04, 1.0))
    assert not gap_note(with_gap(0.0, 0.0))
    assert not gap_note(replace(with_gap(1.0, 2.0), ledger=None))
    assert gap_note(with_gap(0.1, 1.0))


def test_constants_that_outweigh_the_inputs_are_told() -> None:
    one = with_gap(0.0, 2.0)
    assert constants_note(replace(one, ledger=Ledger(0.9, 1.0, 0.1, 0.0))).startswith(
        "Positions and biases, constants of the model,"
    )
    assert constants_note(replace(one, ledger=Ledger(0.9, -2.0, 0.5, 2.6)))
    assert not constants_note(replace(one, ledger=Ledger(2.0, 1.0, -1.0, 0.0)))
    assert not constants_note(replace(one, ledger=Ledger(-3.0, 2.0, 0.5, 2.5)))
    assert not constants_note(replace(one, ledger=None))


def test_large_entries_that_cancel_are_told() -> None:
    one = replace(with_gap(0.0, 9.0), ledger=Ledger(114.6, -97.0, -8.6, 0.0))
    assert (
        cancellation_note(one)
        == ledger_note(one)
        == (
            "By gi, large entries cancel: inputs +114.600 and positions -97.000, for an output of +9.000. Compare the "
            "scores with each other, not with the output."
        )
    )
    assert not cancellation_note(replace(one, ledger=Ledger(12.0, -4.0, 1.0, 0.0)))
    assert not cancellation_note(replace(one, ledger=None))
    assert cancellation_note(replace(one, output=0.0, ledger=Ledger(1.0, -1.0, 0.0, 0.0)))
    assert not cancellation_note(replace(one, output=0.0, ledger=Ledger(0.0, 0.0, 0.0, 0.0)))
    assert ledger_note(replace(one, ledger=Ledger(30.0, 0.0, -41.0, 20.0))).startswith("Large gap: of the output")


def test_a_comparison_tells_large_gaps_and_one_ledger_whose_entries_cancel() -> None:
    one = replace(with_gap(0.0, 9.0), ledger=Ledger(114.6, -97.0, -8.6, 0.0), method="exact")
    notes = ledger_notes([replace(one, ledger=Ledger(1.0, 0.0, 0.0, 8.0), method="gi"), one, replace(one, method="ah")])
    assert [note[:10] for note in notes] == ["Large gap:", "By exact, "]
    assert ledger_notes([replace(one, ledger=None)]) == []


def test_what_is_hidden_is_told() -> None:
    task = conserva.load()
    one = conserva.explain(task, "not much of anything.")
    assert not hidden_line(one)
    assert not hidden_line(one.merged())
    special = sum(score for score, flag in zip(one.scores, one.special, strict=True) if flag)
    assert hidden_line(one.visible()).endswith(f"have {special:+.3f} of the inputs in the ledger")
    assert not hidden_line(conserva.explain(task, "a joy.", method="rollout").visible())


def test_a_hidden_sink_is_not_told_twice() -> None:
    one = explanation(["a", "joy"], scores=(2.0, 0.75), ledger=Ledger(2.75, 0.0, 0.0, 0.0), output=2.75)
    one = replace(one, sink=Sink.of(0, one.features, one.scores))
    assert not hidden_line(one.without_sink())


def test_the_verdict_names_a_repeated_word_by_its_largest_score() -> None:
    task = conserva.load()
    one = conserva.explain(task, "bad. good. great.", "positive")
    words = one.merged().visible()
    names = ("bad", ".", "good", ".", "great", ".")
    one = replace(words, features=names, scores=(-1.0, 0.1, 0.5, 0.9, 0.2, 0.3))
    assert "“.” (+0.900) and “good” (+0.500) count most for it, “bad” (-1.000) most against it" in verdict(one)
