"""The verdict of an explanation: when no word is named, and names that are read from right to left."""

from __future__ import annotations

from conserva.engine.ledger import Ledger
from conserva.views.explanation_page import page
from conserva.views.verdict import isolated, verdict
from made_up_explanations import explanation


def test_a_verdict_does_not_name_words_that_are_small_beside_the_gap() -> None:
    ledger = Ledger.of(100.0, 1.0, 0.5, 0.25)
    one = explanation(["one", "two"], special=(False, False), ledger=ledger, output=100.0)
    assert verdict(one).endswith(": no word counts much; the gap has +98.250.")


def test_names_from_right_to_left_keep_the_order_of_a_verdict() -> None:
    name = "\u05d0\u05d1"  # Hebrew
    assert isolated(f"“good” (+1) and “{name}” (+2)") == ["“good” (+1) and “", name, "” (+2)"]
    assert isolated("“good” (+1)") == ["“good” (+1)"]
    assert f"“<bdi>{name}</bdi>” (" in page([explanation([name], special=(False,), scores=(1.0,))])


def test_words_of_a_pair_are_named_with_their_text() -> None:
    pair = explanation(
        ["a", "joy", "a", "bore"], scores=(0.1, 1.0, 0.0, -2.0), sections=(("first text", 2), ("second text", 2))
    )
    assert verdict(pair).endswith(
        "“joy” in the first text (+1.000) counts most for it, “bore” in the second text (-2.000) most against it."
    )
    assert "bore (second text)" in page([pair])
    assert " in the " not in verdict(explanation(["a", "joy"], scores=(0.1, 1.0), sections=(("first", 2),)))
