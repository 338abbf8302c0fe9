"""Mentions: word boundaries, possessives, case, phrases, ordinary words."""

from __future__ import annotations

import pytest

from conserva import Error
from conserva.bias_study.lexicon import lexicon_of
from conserva.bias_study.mentions import Found, Tagged, Words

NAMES = {
    "first": ["Jean", "Jean-Luc", "Don", "James", "Angelo", "John", "Zo\u00eb", "Ren\u00e9e", "Rene", "Jo Ann", "Ann"],
    "full": ["Clint Eastwood", "Eastwood", "Vincent van Gogh", "J. K. Rowling", "O'Brien", "Ann Lee Smith"],
    "words": ["film", "4K", "stra\u00dfe"],
}


def mentioned(text: str, groups=None, **options) -> list[str]:
    """Return the mentions as they stand in the text."""
    found, _ = Words(lexicon_of(groups or NAMES, **{"ordinary": "keep", **options})).find(text)
    return [text[one.start : one.end] for one in found]


@pytest.mark.parametrize(
    ("text", "there"),
    {
        "nothing": ("", []),
        "alone": ("john", ["john"]),
        "among marks": ('"john", (john) john! john... john\u2014john', ["john"] * 6),
        "inside a word": ("johnny, sejohn, john2, john_b", []),
        "possessives": ("eastwood's eastwood 's eastwood\u2019s james' james's", ["eastwood"] * 3 + ["james"] * 2),
        "possessive at the end": ("as good as james'", ["james"]),
        "short forms": ("john'll go, john'd go, john 've", ["john"] * 3),
        "contractions are no names": ("don't, don\u2019t", []),
        "quoted": ("'john' and 'john' and \u2018john\u2019", ["john"] * 3),
        "elided": ("d'angelo", []),
        "hyphens tie": ("jean-paul, luc-jean, eastwood-like, jean\u2011paul", []),
        "listed with its hyphen": ("jean-luc and jean \u2010 luc", ["jean-luc", "jean \u2010 luc"]),
        "a dash does not tie": ("it was john--yes, john -- and john-", ["john"] * 3),
        "white space in a phrase": ("clint \n eastwood, clint\teastwood", ["clint \n eastwood", "clint\teastwood"]),
        "a mark in a phrase": ("clint, eastwood", ["eastwood"]),
        "longest first": ("clint eastwood and eastwood", ["clint eastwood", "eastwood"]),
        "longest first, though it begins later": ("jo ann lee smith", ["ann lee smith"]),
        "initials": ("j.k. rowling, j . k . rowling; j k rowling", ["j.k. rowling", "j . k . rowling"]),
        "an apostrophe in a name": ("o'brien, o\u2019brien", ["o'brien", "o\u2019brien"]),
        "accents of their own": ("zoe\u0308 and zo\u00eb", ["zoe\u0308", "zo\u00eb"]),
        "an accent amid a word": ("rene\u0301e, rene", ["rene\u0301e", "rene"]),
        "an accent makes another word": ("jean\u0301 johne\u0301", []),
        "digits": ("4k, 14k, 4k2", ["4k"]),
        "letters that fold to several": ("eine strasse, eine stra\u00dfe", ["strasse", "stra\u00dfe"]),
    }.values(),
)  # fmt: skip
def test_where_words_stand(text: str, there: list[str]) -> None:
    assert mentioned(text) == there


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("the john is broken", ["john"]),
        ("The john is broken", []),
        ("The John is broken", ["John"]),
        ("JOHN IS HERE", ["JOHN"]),
        ("The Film, the film, FILM", ["Film", "film", "FILM"]),
        ("Vincent van Gogh, Vincent Van Gogh", ["Vincent van Gogh", "Vincent Van Gogh"]),
        ("I like vincent van gogh", []),
        ("vincent van gogh", ["vincent van gogh"]),
    ],
)
def test_case(text: str, there: list[str]) -> None:
    assert mentioned(text) == there


@pytest.mark.parametrize(
    ("text", "there", "left_out"),
    [
        ("will he?", [], {"Will": 1}),
        ("he said that will will", [], {"Will": 2}),
        ("He said that Will will", ["Will"], {}),
        ("Will he? Will said", [], {"Will": 2}),
        ('He said: "Will you?" and went', [], {"Will": 1}),
        ("One.<br />Will", [], {"Will": 1}),
        ("He asked Will, and then, Will", ["Will", "Will"], {}),
        ("THEN WILL CAME", [], {"Will": 1}),
        ("Then French Will came, and French too", ["Will"], {"French": 2}),
        ("will smith", ["will smith"], {}),
        ("john will", ["john"], {"Will": 1}),
    ],
)
def test_names_that_are_ordinary_words(text: str, there: list[str], left_out: dict[str, int]) -> None:
    groups = {"a": ["Will", "Will Smith", "French", "John"]}
    found, counted = Words(lexicon_of(groups)).find(text)
    assert [text[one.start : one.end] for one in found] == there
    assert dict(counted) == left_out
    assert sum(counted.values()) + len(found) >= len(mentioned(text, groups)) > 0


def test_a_word_in_lower_case_is_no_doubtful_name() -> None:
    assert mentioned("Will he? he will", {"modal": ["will"]}, ordinary="skip") == ["Will", "will"]


def test_words_of_several_groups() -> None:
    groups = {"a": ["x", "both"], "b": ["y", "both"]}
    found, left_out = Words(lexicon_of(groups)).find("x both")
    assert found == [Found(0, 1, "x", "a"), Found(2, 6, "both", "ambiguous")]
    assert not left_out
    found, left_out = Words(lexicon_of(groups, ambiguous="skip")).find("x both")
    assert found == [Found(0, 1, "x", "a")]
    assert left_out == {"both": 1}


def test_a_tagger_names_the_groups() -> None:
    def tagger(text: str) -> list[tuple[int, int, str]]:
        return [(10, 14, "place"), (0, 6, "person")]

    found, left_out = Tagged(tagger).find("Ann\tO. in Rome")
    assert found == [Found(0, 6, "ann o.", "person"), Found(10, 14, "rome", "place")]
    assert not left_out
    with pytest.raises(Error, match=r"\(10, 14\) in a text of 3 characters"):
        Tagged(tagger).find("Ann")
