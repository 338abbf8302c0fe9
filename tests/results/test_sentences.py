"""Explanations in sentences: their borders, and sums that stay exact."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from conserva.results.explanation import Explanation
from made_up_explanations import explanation

CASES = {
    "two sentences": ("It is long. It is dull.", ["It is long.", "It is dull."]),
    "quotes belong to the sentence": ('"Is it?" he asked. "No!"', ['"Is it?" he asked.', '"No!"']),
    "titles and initials": ("Mr. A. Lee met Dr. Oz. They left.", ["Mr. A. Lee met Dr. Oz.", "They left."]),
    "numbers": ("3.5 stars of 5. Good.", ["3.5 stars of 5.", "Good."]),
    "dots in a sentence": ("Well... it was. Fine", ["Well... it was.", "Fine"]),
    "a blank line": ("A title\n\nthe text", ["A title", "the text"]),
    "a broken line": ("one\ntwo", ["one\ntwo"]),
    "no full stop": ("nothing", ["nothing"]),
    "full stops without spaces": ("好。不好！吗？", ["好。", "不好！", "吗？"]),  # noqa: RUF001
    "only full stops": ("...", ["..."]),
}


def located(text: str, **changes: object) -> Explanation:
    """Return an explanation of a text in words and marks, between special tokens, with their offsets."""
    spans = [match.span() for match in re.finditer(r"[^\W\d_]+|\d+|[^\w\s]", text)]
    features = ["[CLS]", *(text[slice(*span)] for span in spans), "[SEP]"]
    settings = {
        "text": text,
        "offsets": (None, *spans, None),
        "special": tuple(span is None for span in (None, *spans, None)),
        "words": (None, *range(len(spans)), None),
        "ledger": None,
        **changes,
    }
    return explanation(features, **settings)


@pytest.mark.parametrize("case", CASES)
def test_a_text_is_split_into_its_sentences(case: str) -> None:
    text, expected = CASES[case]
    found = located(text).sentences()
    assert [name for name, special in zip(found.features, found.special, strict=True) if not special] == expected


def test_the_score_of_a_sentence_is_the_sum_of_its_tokens() -> None:
    one = located("It is long. It is dull. The end")
    found = one.sentences()
    assert found.features == ("[CLS]", "It is long.", "It is dull.", "The end", "[SEP]")
    assert found.scores == (
        one.scores[0],
        sum(one.scores[1:5]),
        sum(one.scores[5:9]),
        sum(one.scores[9:11]),
        one.scores[11],
    )
    assert math.fsum(found.scores) == pytest.approx(math.fsum(one.scores), abs=1e-12)
    assert found.sentences() == found


def test_no_sentence_is_in_two_sections() -> None:
    one = located("one two three four", sections=(("first", 3), ("second", 3)))
    found = one.sentences()
    assert found.features == ("[CLS]", "one two", "three four", "[SEP]")
    assert found.sections == (("first", 2), ("second", 2))


def test_features_without_offsets_stay_as_they_are() -> None:
    one = replace(located("one. Two."), offsets=(None,) * 6)
    assert one.sentences().features == one.features
