"""The page of one explanation: its verdict, its text as it was written, its bars and its ledger."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from browser import Pages, in_a_browser
from conserva.engine.ledger import Ledger
from conserva.results.explanation import ClassScore, Explanation, Sink, Window
from conserva.views.components import bar_of, signed_bars
from conserva.views.explanation_page import fragment, page
from conserva.views.text_levels import levels
from conserva.views.verdict import verdict
from conserva.views.wording import ledger_line, number
from leaving import BAD
from made_up_explanations import explanation

CLASSES = (ClassScore("positive", 1.5, 0.9), ClassScore("negative", -1.0, 0.1))


def located(text: str, spans: list[tuple[int, int]], **changes: object) -> Explanation:
    """Return an explanation of a text between special tokens, with the offsets of its tokens."""
    features = ["[CLS]", *(text[slice(*span)].lower() for span in spans), "[SEP]"]
    settings: dict[str, object] = {
        "text": text,
        "offsets": (None, *spans, None),
        "special": (True, *(False for _ in spans), True),
        "words": (None, *range(len(spans)), None),
        "classes": CLASSES,
        "provenance": {"head": "single_label", "dtype": "float32"},
        **changes,
    }
    return explanation(features, **settings)


def spans(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\S+", text)]


def shown(one: Explanation, level: str | None = None) -> str:
    """Return what a reader sees of a text at a level of detail, by default the first."""
    found = page([one])
    inside = re.search(rf'<div class="level by-{level or levels(one)[0].name}">(.*?)</div>', found, re.DOTALL)
    paragraphs = re.findall(r'<p class="tokens written".*?>(.*?)</p>', inside[1] if inside else found, re.DOTALL)
    return unescape(re.sub("<.*?>", "", "|".join(paragraphs)))


# The verdict


def scored(**changes: object) -> Explanation:
    text = "Not a JOY but dull"
    settings: dict[str, object] = {"scores": (9.0, -0.5, 0.01, 2.0, 1.0, -0.25, -9.0), **changes}
    return located(text, spans(text), **settings)


PREDICTS = "The model predicts positive with a probability of 90.0%:"
REASONS = "“JOY” (+2.000) and “but” (+1.000) count most for it, “Not” (-0.500) and “dull” (-0.250) most against it."


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, f"{PREDICTS} {REASONS}"),
        (
            {"target": "negative", "probability": 0.1},
            f"The model predicts positive (90.0%); explained is negative, with a probability of 10.0%: {REASONS}",
        ),
        (
            {"target": "positive - negative", "probability": None},
            f"The model predicts positive (90.0%); explained is positive - negative, with the output +1.500: {REASONS}",
        ),
        ({"provenance": {"head": "multi_label"}}, f"The model gives positive a probability of 90.0%: {REASONS}"),
        ({"provenance": {"head": "binary"}}, f"The model gives positive a probability of 90.0%: {REASONS}"),
        ({"classes": ()}, f"The model gives positive a probability of 90.0%: {REASONS}"),
        (
            {"target": "output", "probability": None, "classes": (ClassScore("output", 1.5, None),)},
            f"The output is +1.500: {REASONS}",
        ),
        (
            {"target": "valence", "probability": None, "classes": (ClassScore("arousal", 2.0, None),)},
            f"The output for valence is +1.500: {REASONS}",
        ),
        ({"scores": (0.0,) * 7, "ledger": None}, "The model predicts positive with a probability of 90.0%."),
        ({"ledger": Ledger.of(1.5, 2.25, -70.0, 60.0)}, f"{PREDICTS} no word counts much; positions have -70.000."),
        ({"ledger": Ledger.of(1.5, 2.25, 1.0, -41.0)}, f"{PREDICTS} no word counts much; biases have -41.000."),
        ({"ledger": Ledger.of(1.5, 2.25, -39.0, 30.0)}, f"{PREDICTS} {REASONS}"),
        (
            {"scores": (-9, 0, 0, 2, 1, 0, -40), "ledger": None},
            f"{PREDICTS} no word counts much; special tokens have -49.000.",
        ),
        (
            {"scores": (0, 0, 0, 1, 0, 0, 0)},
            f"{PREDICTS} “JOY” (+1.000) counts most for it.",
        ),
        (
            {"scores": (0, 0, -2, 0, 0, -1, 0)},
            f"{PREDICTS} “a” (-2.000) and “dull” (-1.000) count most against it.",
        ),
        (
            {"scores": (5, 0.1, 0, 0.4, 0, 0, 0), "ledger": None},
            f"{PREDICTS} “JOY” (+0.400) and “Not” (+0.100) have the highest scores.",
        ),
    ],
)
def test_the_verdict_says_what_how_sure_and_why(changes: dict[str, object], expected: str) -> None:
    one = scored(**changes)
    assert verdict(one) == expected
    assert f"<h2>{expected}</h2>" in unescape(page([one]))


def test_the_verdict_names_no_word_twice_and_cuts_long_ones() -> None:
    text = f"dull dull {'x' * 300} fine"
    one = located(text, spans(text), scores=(0, 3, 2, 1, 0.5, 0))
    assert f"“dull” (+3.000) and “{'x' * 40}…” (+1.000) count" in verdict(one)


# The text as it was written

WRITTEN = {
    "case, blanks and lines": "  Not MUCH\n\n  of IT. ",
    "emoji": "so good 👩\u200d👩\u200d👧 🎬!",
    "right to left": "הסרט טוב and fine",
    "markup": "<b>bold</b> & \"quotes\" 'more'",
    "zero width": "zero\u200bwidth a\u0301",
    "a long word": "x" * 500,
    "full width": "好。不好",
}


@pytest.mark.parametrize("case", WRITTEN)
def test_a_text_is_shown_as_it_was_written(case: str) -> None:
    text = WRITTEN[case]
    one = located(text, spans(text))
    for found in (shown(one), shown(replace(one, special=(True, *(False for _ in spans(text)), True)))):
        assert found.rstrip() == text.rstrip()


def test_what_acts_on_a_page_is_replaced_by_signs() -> None:
    text = "a\u202eb\x1b[31m\r\nc\td\u2028e \ud800"
    one = located(text, spans(text))
    assert shown(one) == "a\\u202eb\\x1b[31m\nc⇥d\\u2028e \\ud800"
    assert not BAD.search(page([one]))


def test_features_have_their_own_spelling_where_offsets_are_unknown() -> None:
    one = explanation(["[CLS]", "##x", "Ġy"])
    tokens = re.findall(r'<span class="token[^>]*dir="auto">(.*?)</span>', page([one]))
    assert tokens == ["[CLS]", "##x", "Ġy"]
    assert "special tokens" not in page([one])


def test_special_tokens_are_apart_with_their_scores() -> None:
    found = page([scored()])
    apart = re.search(r'<p class="tokens apart">(.*?)</p>', found, re.DOTALL)
    assert apart
    assert re.findall(r'data-score="(.*?)".*?>(.*?)</span>', apart[1]) == [("+9.000", "[CLS]"), ("-9.000", "[SEP]")]
    assert "[CLS]" not in shown(scored())


def test_tokens_of_one_character_do_not_repeat_it() -> None:
    """The bytes of an emoji are several tokens with the same offsets."""
    one = located("a 🎬 b", [(0, 1), (2, 3), (2, 3), (2, 3), (4, 5)], words=(None, 0, 1, 1, 1, 2, None))
    one = replace(one, features=("[CLS]", "a", "ð", "Ł", "İ", "b", "[SEP]"))
    assert shown(one) == "a 🎬 b"
    assert shown(one, "words") == "a 🎬 b"
    assert "Ł" not in page([one]).partition("provenance")[0]


def test_unknown_tokens_are_marked_and_explained() -> None:
    one = located("a 🎬", [(0, 1), (2, 3)], unknown=(False, False, True, False))
    one = replace(one, features=("[CLS]", "a", "[UNK]", "[SEP]"))
    assert re.search(r'<span class="token[^"]* unknown"[^>]*>🎬</span>', page([one]))
    assert "not in the model's vocabulary. The model reads [UNK] instead." in unescape(page([one]))
    assert "vocabulary" not in page([replace(one, unknown=(False,) * 4)])


def test_the_end_that_a_model_did_not_read_is_marked() -> None:
    one = located("one two three <b>", [(0, 3), (4, 7)])
    found = page([one])
    assert '<span class="unread"> three &lt;b&gt;</span>' in found
    assert "truncated" in found
    assert "truncated" not in page([located("one two \n", [(0, 3), (4, 7)])])


def test_the_word_that_is_asked_about_is_no_end_that_was_not_read() -> None:
    one = located("one two [word: <b>]", [(0, 3), (4, 7)])
    found = page([one])
    assert '<span class="note"> [word: &lt;b&gt;]</span>' in found
    assert "truncated" not in found
    found = page([located("one two three [word: one]", [(0, 3), (4, 7)])])
    assert '<span class="unread"> three</span>' in found
    assert "truncated" in found


def test_classes_after_the_fifth_fold_but_not_the_target() -> None:
    labels = ("a", "b", "c", "d", "e", "f", "positive", "g")
    one = explanation(["[CLS]", "joy"], classes=tuple(ClassScore(label, 0.0, 0.1) for label in labels))
    found = page([one]).partition("most probable first</h3>")[2].partition("<h3>Ledger")[0]
    names = [re.findall("<bdi>(.*?)</bdi>", part) for part in found.split("<summary>the next 2</summary>")]
    assert names == [["a", "b", "c", "d", "e", "positive"], ["f", "g"]]


def test_sections_have_titles_and_share_no_text() -> None:
    text = "first one | second one"
    at = spans(text)
    one = located(text, [*at[:2], *at[3:]], sections=(("premise", 3), ("<hypothesis>", 3)))
    assert shown(one) == "first one|second one"
    assert "<h3>premise</h3>" in page([one])
    assert "<h3>&lt;hypothesis&gt;</h3>" in page([one])


# Tokens, words, sentences


def test_sums_are_the_same_at_every_level() -> None:
    text = "unforgettable. Nothing dull"
    at = [(0, 5), (5, 13), (13, 14), (15, 22), (23, 27)]
    one = located(text, at, words=(None, 0, 0, 1, 2, 3, None), ledger=None)
    found = levels(one)
    assert [level.name for level in found] == ["tokens", "words", "sentences"]
    for level in found:
        scores = [piece.score for section in level.sections for piece in section.pieces]
        assert sum(scores) == pytest.approx(sum(one.scores[1:-1]))
        assert level.scale == pytest.approx(max(abs(score) for score in (*scores, one.scores[0], one.scores[-1])))
    sentences = [piece.text for section in found[2].sections for piece in section.pieces]
    assert sentences == ["unforgettable.", "Nothing dull"]


def test_levels_that_are_equal_are_shown_once() -> None:
    one = scored()
    assert [level.name for level in levels(one)] == ["words"]
    assert "<form" not in page([one])


def test_several_explanations_have_switches_of_their_own() -> None:
    text = "unforgettable. Dull"
    one = located(text, [(0, 5), (5, 13), (13, 14), (15, 19)], words=(None, 0, 0, 1, 2, None))
    found = page([one, one])
    assert len(re.findall(r'<form class="levels" method="dialog">', found)) == 2
    assert found.count(" checked>") == 2
    assert "form-action 'none'" in found


# Bars


def test_the_strongest_scores_come_first_and_the_rest_is_folded() -> None:
    text = " ".join(f"w{i}" for i in range(12))
    one = located(text, spans(text), scores=tuple(float(i) for i in range(14)), ledger=None)
    found = page([one])
    names = re.findall(r"<li[^>]*><bdi>(.*?)</bdi>", found)
    assert names[:8] == ["[SEP]", "w11", "w10", "w9", "w8", "w7", "w6", "w5"]
    assert "<summary>the next 6</summary>" in found


def test_bars_lie_on_the_side_of_their_sign() -> None:
    found = signed_bars([("a", 2.0), ("b", -1.0), ("c", 0.0)])
    assert (found.zero, [(bar.left, bar.width, bar.kind) for bar in found.bars]) == (
        0.5,
        [(0.5, 0.5, "for"), (0.25, 0.25, "against"), (0.5, 0.0, "")],
    )
    assert [(bar.width, bar.kind) for bar in signed_bars([("a", 2.0), ("b", -1e-6)]).bars] == [(0.5, "for"), (0.0, "")]
    assert signed_bars([("a", 2.0)]).zero == 0
    assert signed_bars([("a", -2.0)]).zero == 1
    assert signed_bars([]).bars == []


@pytest.mark.parametrize(
    ("head", "probability", "title"),
    [
        ("single_label", 0.9, "Classes, the most probable first"),
        ("multi_label", 0.9, "Labels, each with a probability of its own"),
        ("binary", 0.9, "The model's only output, as a probability"),
        ("ordinal", 0.9, "Ordered classes, the most probable first"),
        ("regression", None, "Outputs"),
    ],
)
def test_outputs_are_shown_as_what_they_are(head: str, probability: float | None, title: str) -> None:
    classes = tuple(ClassScore(name, 1.5, probability) for name in ("positive", "<other>"))
    found = page([scored(classes=classes, probability=probability, provenance={"head": head})])
    assert f"<h3>{title}</h3>" in unescape(found)
    assert re.search(r'<li class="aim"><bdi>positive</bdi>', found)
    assert "&lt;other&gt;" in found
    assert ("90.0%" in found) == (probability is not None)


def test_a_single_number_has_no_list_of_outputs() -> None:
    assert "<h3>Outputs" not in page([scored(classes=(ClassScore("output", 1.0, None),), probability=None)])


# The ledger


def drawn(ledger: Ledger[float], output: float) -> list[tuple[str, float, float, float, str]]:
    bars = bar_of(ledger, output, "line").bars
    assert bars is not None
    return [(bar.name, round(bar.left, 6), round(bar.width, 6), round(bar.end, 6), bar.kind) for bar in bars.bars]


def test_each_entry_begins_where_the_one_before_ends() -> None:
    assert drawn(Ledger.of(3.0, 8.0, -4.0, -2.0), 3.0) == [
        ("inputs", 0.0, 1.0, 1.0, "up"),
        ("positions", 0.5, 0.5, 0.5, "down"),
        ("biases", 0.25, 0.25, 0.25, "down"),
        ("gap", 0.25, 0.125, 0.375, "up"),
        ("output", 0.0, 0.375, 0.375, "up"),
    ]


def test_a_gap_of_rounding_errors_has_no_bar() -> None:
    assert drawn(Ledger.of(2.0, 2.0 + 3e-6, 0.0, 0.0), 2.0)[3][1:] == (0.999999, 0.0, 0.999999, "")


def test_a_loss_and_a_gain_do_not_look_alike() -> None:
    lost, won = drawn(Ledger.of(-11.2, -11.2, 0.0, 0.0), -11.2), drawn(Ledger.of(2.8, 2.8, 0.0, 0.0), 2.8)
    assert (lost[0][3], lost[0][4]) == (0.0, "down")
    assert (won[0][3], won[0][4]) == (1.0, "up")
    assert drawn(Ledger.of(0.0, 0.0, 0.0, 0.0), 0.0)[-1] == ("output", 0.0, 0.0, 0.0, "")


def test_the_ledger_on_a_page_adds_up_and_is_named_for_screen_readers() -> None:
    one = scored()
    found = page([one])
    assert f'role="img" aria-label="{ledger_line(one)}"' in found
    values = [float(value) for value in re.findall(r'data-value="(.*?)"', found)]
    assert sum(values) == pytest.approx(one.output, abs=1e-4)
    assert re.search(r"<span>= output</span>.*?<span>\+1.500</span>", found)


def test_a_large_gap_is_explained_below_the_ledger() -> None:
    large = scored(ledger=Ledger.of(1.5, 0.5, 0.0, 0.0), method="gi")
    assert "Large gap: of the output +1.500, gi attributes +0.500" in unescape(page([large]))
    assert "Large gap" not in page([scored(ledger=Ledger.of(1.5, 1.5, 0.0, 0.0))])


# Scores without a sign, windows, notes


def test_scores_without_sign_are_not_said_to_be_for_or_against() -> None:
    unsigned = scored(scores=(0.1, 0.2, 0.3, 0.4, 0.0, 0.1, 0.0), ledger=None, method="rollout")
    for found in (page([unsigned]), fragment([unsigned])):
        assert "blue against" not in found
        assert "the darker, the higher the score" in found
    assert "red for, blue against the target" in page([replace(unsigned, scores=(0.1, -0.2, 0.3, 0.4, 0.0, 0.1, 0.0))])
    assert "red for, blue against the target" in page([scored(scores=(1.0,) * 7)])


def test_windows_are_listed_with_their_range_and_output() -> None:
    one = scored(windows=(Window(1, 4, 2.5), Window(3, 6, -0.5)))
    found = page([one])
    assert "<summary>2 windows</summary>" in found
    rows = re.findall(r'<tr><th scope="row".*?>(\d)</th><td>(.*?)</td><td>(.*?)</td><td class="word">(.*?)</td>', found)
    assert [tuple(map(str.strip, row)) for row in rows] == [
        ("1", "2 to 4", "+2.500", "Not a JOY"),
        ("2", "4 to 6", "-0.500", "JOY but dull"),
    ]


def test_the_sink_and_the_provenance_are_told() -> None:
    found = unescape(page([scored(sink=Sink("[CLS]", 9.0, 0.42, 0), provenance={"seed": [1, "<i>"]})]))
    assert "the first token '[CLS]' has +9.000, 42% of the absolute relevance" in found
    assert '<dt>seed</dt><dd>[1, "<i>"]</dd>' in found


# In a browser


@in_a_browser
def test_in_a_browser_scores_appear_on_focus_and_levels_are_switched_without_scripts(pages: Pages) -> None:
    text = f"unforgettable. Dull {'x' * 400} הסרט"
    at = [(0, 5), (5, 13), (13, 14), (15, 19), (20, 420), (421, 425)]
    one = located(text, at, words=(None, 0, 0, 1, 2, 3, 4, None))
    opened = pages.open(page([one, one]), width=500, height=900)
    shown = opened.locator(".level").filter(visible=True)
    assert [level.get_attribute("class") for level in shown.all()] == ["level by-tokens"] * 2
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    count, labels = opened.locator(".token").filter(visible=True).count(), []
    for _ in range(3 * count):  # other parts of the page have the focus in between
        opened.keyboard.press("Tab")
        label = opened.evaluate("""() => {
          const one = document.activeElement;
          return one.matches(".token") ? getComputedStyle(one, "::after").content : "";
        }""")
        labels += [label] if label else []
    expected = [f'"{number(score)}"' for score in (*one.scores[1:-1], one.scores[0], one.scores[-1])] * 2
    assert labels[:count] == expected
    opened.locator("[value=words]").nth(1).check()
    assert [level.get_attribute("class") for level in shown.all()] == ["level by-tokens", "level by-words"]
