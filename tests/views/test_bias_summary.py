"""What is said of a bias study: every word follows from a number, and every edge case is a page and a terminal too."""

import dataclasses
import io

import pytest
from rich.console import Console

from conserva.bias_study.result import BiasStudy, Naive
from conserva.views.bias_page import page
from conserva.views.bias_summary import sentences, show
from flat_text import flat
from made_up_bias import interval, study


def summary_of(one: BiasStudy) -> str:
    return "\n".join(sentences(one))


def with_difference(**changes: object) -> BiasStudy:
    made = study()
    return dataclasses.replace(made, differences=(dataclasses.replace(made.differences[0], **changes),))


def with_naive(*rows: Naive, **changes: object) -> BiasStudy:
    return study(naive=rows, **changes)


def flag_all(made: BiasStudy, flagged: bool) -> BiasStudy:
    p = 0.0001 if flagged else 0.8
    return dataclasses.replace(
        made,
        differences=tuple(dataclasses.replace(one, p=p, corrected=p, flagged=flagged) for one in made.differences),
        entities=tuple(dataclasses.replace(one, p=p, corrected=p, flagged=flagged) for one in made.entities),
    )


# The summary: flip a number and the words change

SAME = ("words of “female” speak more for “positive” than words of “male”", "by 0.120 logits", "0.070 to 0.170")
CASES = {
    "flagged": (study(), ("is flagged: ", *SAME, "medium effect (+0.410", "0.2 % of the splits"), ("No difference",)),
    "turned": (
        study(difference=-0.12),
        ("words of “male” speak more for “positive” than words of “female”", "by 0.120 logits", "0.070 to 0.170"),
        ("words of “female” speak more",),
    ),
    "not flagged": (
        study(p=0.3),
        ("No difference between “female” and “male” is shown", *SAME, "The interval excludes 0, but", "30 % of the"),
        ("is flagged: words",),
    ),
    "not flagged, around 0": (
        study(p=0.3, difference=0.01),
        ("any difference from -0.040 to 0.060 logits is compatible", "does not prove"),
        ("excludes 0",),
    ),
    "flagged, around 0": (
        with_difference(difference=interval(0.01)),
        ("is flagged: ", "But the interval includes 0"),
        ("No difference between",),
    ),
    "no difference at all": (
        with_difference(difference=interval(0.0), effect=0.0, p=1.0, corrected=1.0, flagged=False),
        ("words of both have the same mean relevance", "negligible effect", "100 % of the splits"),
        ("speak more for", "-0.000 logits"),
    ),
    "negligible": (with_difference(effect=0.1), ("a negligible effect (+0.100",), ("medium",)),
    "small": (with_difference(effect=0.147), ("a small effect (+0.147",), ()),
    "large": (with_difference(effect=0.474), ("a large effect (+0.474",), ()),
    "a few words decide": (
        with_difference(effect=-0.2),
        ("But most pairs of words differ in the other direction",),
        (),
    ),
    "rare": (with_difference(p=0.0002), ("less than 0.1 % of the splits",), ()),
    "level": (study(level=0.01), ("below 1 % is flagged",), ("below 5 %",)),
    "typical": (with_difference(difference=interval(1.07)), ("50 % of the output for a typical text",), ()),
    "three groups": (
        study(groups=("female", "male", "ambiguous")),
        ("0.6 % after correction for 3 comparisons", "Flagged too: words of “female”", "; words of “male”"),
        ("Not shown to differ",),
    ),
    "three groups, nothing flagged": (
        study(groups=("female", "male", "ambiguous"), p=0.4),
        (
            "No difference between “female” and “male”",
            "Nor are these shown to differ: “female” and “ambiguous”, first minus second 0.120 logits",
        ),
        ("Flagged too",),
    ),
    "one group": (
        study(groups=("female",), differences=()),
        ("There is only one group, “female”, and nothing to compare it with", "of the texts without"),
        ("No groups",),
    ),
    "nothing compared": (
        study(differences=()),
        ("No groups were compared",),
        ("There is only one group", "Relevance shows"),
    ),
    "words": (
        study(),
        ("Of 16 words tested, 2 stand out", "above it “otto” (+0.087 in 12 mentions)", "below it “halle” (-0.088"),
        ("too few mentions",),
    ),
    "no words": (study(flagged=()), ("None of 16 words tested stands out", "(+0.037 logits)"), ("expected by chance",)),
    "one word": (study(flagged=("otto",)), ("1 stands out", "above it “otto”"), ("below it",)),
    "few mentions": (study(mentions=20, least=2), ("Of 4 words tested|None of 4 words", "12 words had too few"), ()),
    "single mentions": (study(mentions=16), ("No word has enough mentions",), ("stands out", "stand out")),
    "swaps": (
        study(),
        (
            "3 words were replaced",
            "predicted by relevance for “halle”",
            "in the other direction for “clint”",
            "no clear direction for “otto”",
        ),
        ("was not checked",),
    ),
    "no swaps": (study(swaps=()), ("was not checked",), ("As a check",)),
    "no swap agrees": (study(swaps=study().swaps[1:]), ("predicted by relevance for none, in the other",), ()),
    "confounded": (
        study(),
        (
            "“female”, 62 % are predicted as “positive”, of texts with “male”, 54 %",
            "would be called",
            "60 % against 53 %",
        ),
        ("would not be called", "no labels", "account for a part"),
    ),
    "labels explain a part": (
        with_naive(Naive("female", 9, 0.7, 0.52, 0.5, 0.01), Naive("male", 9, 0.5, 0.5, 0.7, 0.01)),
        ("too, but less (52 % against 50 %)", "in the same direction"),
        ("a count cannot tell",),
    ),
    "labels do not explain": (
        with_naive(Naive("female", 9, 0.5, 0.6, 0.7, 0.01), Naive("male", 9, 0.7, 0.5, 0.5, 0.01)),
        (
            "do not differ in this direction (50 % against 60 %)",
            "Relevance shows a difference between the two, in the opposite direction",
        ),
        ("a count cannot tell",),
    ),
    "no labels": (
        with_naive(Naive("female", 9, 0.7, None, 0.5, 0.2), Naive("male", 9, 0.5, None, 0.7, 0.2)),
        ("have no labels", "a count cannot tell", "would not be called a difference (p = 0.2)"),
        ("own labels",),
    ),
    "a count misleads": (study(p=0.3), ("would be called", "Relevance shows no difference between the two"), ()),
    "a count shows nothing": (
        with_naive(Naive("female", 9, 0.7, 0.6, 0.5, 0.2), Naive("male", 9, 0.5, 0.4, 0.7, 0.2)),
        (
            "would not be called a difference (p = 0.2). 60 % and 40 % of the texts have that label.",
            "in the same direction",
        ),
        ("cannot tell", "own labels"),
    ),
    "no count": (study(naive=()), ("nothing about people",), ("A plain count",)),
    "left out": (study(), ("“will” (1,203 times), “mark” (61 times) and “grace” (44 times)",), ("zelda",)),
    "nothing left out": (study(left_out={"zelda": 0}), ("nothing about people",), ("Not counted",)),
    "another contrast": (study(target="toxic"), ("Above 0 it speaks for “toxic”", "less of “toxic”"), ("“positive”",)),
}


@pytest.mark.parametrize("name", CASES)
def test_every_word_follows_from_a_number(name: str) -> None:
    one, present, absent = CASES[name]
    text = summary_of(one)
    for part in present:
        assert any(choice in text for choice in part.split("|")), (part, text)
    for part in absent:
        assert part not in text, (part, text)


@pytest.mark.usefixtures("without_figures")
def test_every_edge_case_has_a_page_that_says_the_same_and_a_terminal() -> None:
    for one, *_ in CASES.values():
        text = flat(page(one))
        assert all(" ".join(part.split()) in text for part in sentences(one))
        show(one, Console(file=io.StringIO(), width=60))


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("flagged", [True, False])
def test_everything_or_nothing_flagged(flagged: bool) -> None:
    one = flag_all(study(mentions=400, words=40), flagged)
    html, text = page(one), summary_of(one)
    assert ("and 38 more" in text or "more;" in text) == flagged
    assert ("None of 96 words tested stands out" in text) == (not flagged)
    assert ('<tr class="flagged">' in html) == flagged
    assert html.count('class="flagged"') == (1 + 96 if flagged else 0)


def test_a_flagged_difference_is_not_laid_on_the_words_alone():
    def summary_of(flagged):
        made = study()
        differences = tuple(dataclasses.replace(one, flagged=flagged) for one in made.differences)
        return " ".join(sentences(dataclasses.replace(made, differences=differences)))

    assert "can come from the sentences in which they occur" in summary_of(True)
    assert "can come from the sentences in which they occur" not in summary_of(False)
