"""Views of a bias study: every number is there, every word follows from one, nothing in a text is taken for markup."""

import dataclasses
import io
import re
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from rich.console import Console

from browser import Pages, check_light_and_dark, in_a_browser
from conserva.bias_study.result import BiasStudy, Difference, Entity, Mention, Naive, Swap
from conserva.views import bias_wording as wording
from conserva.views.bias_excerpts import EACH, ROOM, excerpt, extremes
from conserva.views.bias_figure import bins, draw_histograms, histograms_caption
from conserva.views.bias_page import page
from conserva.views.bias_summary import sentences, show
from conserva.views.colours import AGAINST, DARK, FOR, LIGHT, hexadecimal, shade
from flat_text import flat
from made_up_bias import interval, study
from made_up_evaluations import read

NASTY = "<script>alert(1)</script> \"q\" & 'm' $x_1$ <img src=x onerror=alert(2)> <b>"


def one_sentence(text: str, start: int, end: int, relevance: float = 0.4) -> BiasStudy:
    mention = Mention(0, start, end, text[start:end], "female", relevance, 0.1, 1.0)
    return dataclasses.replace(study(), mentions=(mention,), sentences={0: text})


# The page


def test_page_holds_every_number_and_loads_nothing() -> None:
    one = study(groups=("female", "male", "ambiguous"), mentions=200)
    html = page(one)
    found, text = read(html), flat(html)
    assert not re.search(r"https?://|@import|url\((?!#)", html)
    assert not found.tags & {"script", "img", "image", "link", "iframe", "object"}
    assert "default-src 'none'" in html
    assert html.count("<svg ") == 2  # for wide and for narrow pages
    rows = [
        *wording.group_cells(one),
        *wording.difference_cells(one.differences),
        *wording.entity_cells(one.entities),
        *wording.naive_cells(one),
        *wording.swap_cells(one.swaps),
    ]
    assert len(rows) == 3 + 3 + 22 + 3 + 3
    for row in rows:
        assert all(cell in text for cell in row), row
    for part in (*sentences(one), "sha256:0123abcd", "2.11", "will (1,203)", "ah+ln", "positive - negative"):
        assert " ".join(part.split()) in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "zelda" not in text  # never met


def test_sections_come_in_the_order_of_the_questions() -> None:
    order = [
        "Histograms",
        "In words",
        "Groups",
        "Differences",
        "Words",
        "Sentences",
        "A plain count",
        "Swaps",
        "Left out",
    ]
    assert re.findall("<h2>(.*?)</h2>", page(study())) == [*order, "Provenance", "How to read this"]


def test_the_page_of_a_study_read_from_json_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_text(study().to_json(), encoding="utf-8")
    assert page(BiasStudy.load(path)) == page(study())


def test_nothing_in_names_or_texts_is_taken_for_markup() -> None:
    made = one_sentence(f"see {NASTY} here", 4, 4 + len(NASTY))
    group = dataclasses.replace(made.groups[0], name=NASTY)
    one = dataclasses.replace(
        made,
        target=f"{NASTY} - <i>",
        model=NASTY,
        data=NASTY,
        groups=(group, made.groups[1]),
        differences=(Difference(NASTY, "male", interval(0.1), 0.4, 0.001, 0.001, True),),
        entities=(Entity(NASTY, NASTY, 9, interval(0.1), 0.001, 0.001, True),),
        naive=tuple(Naive(name, 9, 0.5 + i / 10, 0.5, 0.5, 0.1) for i, name in enumerate((NASTY, "male"))),
        swaps=(Swap(NASTY, NASTY, 3, 0.1, interval(0.1), True),),
        mentions=(dataclasses.replace(made.mentions[0], entity=NASTY, group=NASTY),),
        left_out={NASTY: 3},
        provenance={NASTY: NASTY},
    )
    html = page(one)
    found = read(html)
    assert not found.tags & {"script", "img", "b"}
    assert "onerror=alert" not in re.sub("&lt;img src=x onerror=alert", "", html)
    assert f"see {NASTY} here" in found.text
    output = io.StringIO()
    show(one, Console(file=output, width=400))
    assert f"see [{NASTY}] here" in output.getvalue()


@pytest.mark.parametrize(
    ("mentions", "words", "most"), [(1000, 0, 400_000), (1000, 490, 400_000), (5000, 800, 800_000)]
)
def test_a_page_of_many_mentions_is_light(mentions: int, words: int, most: int) -> None:
    one = study(mentions=mentions, words=words, least=1)
    assert len(page(one).encode()) < most


def test_a_ranking_begins_with_what_is_flagged_and_what_is_far_from_the_mean() -> None:
    one = study(mentions=1000, words=40)
    assert len(one.entities) == 96
    section = page(one).partition('id="words"')[2].partition('id="sentences"')[0]
    rows = re.findall(r'<tr(?: class="(\w+)")?><th scope="row"[^>]*>(.*?)</th>', section)
    assert [kind for kind, _ in rows] == ["flagged"] * 2 + [""] * 94
    assert sorted(name for _, name in rows) == sorted(entity.name for entity in one.entities)
    means = {entity.name: abs(entity.mean.mean - one.overall_mean) for entity in one.entities}
    rest = [means[name] for kind, name in rows if not kind]
    assert rest == sorted(rest, reverse=True)
    assert "show all 96 rows" in section


def test_a_short_ranking_is_not_folded_and_words_not_tested_are() -> None:
    html = page(study(mentions=20, least=2))
    assert "12 words with too few mentions to be tested" in html
    assert html.count("not tested</td>") == 12
    many = page(study(mentions=400, words=200, least=2))
    assert many.count("not tested</td>") == 60
    assert "the study's JSON has all" in unescape(many)


def test_intervals_are_drawn_where_their_numbers_are() -> None:
    html = page(study())
    pattern = r'id="differences".*?<td class="([\w ]+)" aria-hidden="true" style="--a:(.*?)%;--w:(.*?)%;--m:(.*?)%"'
    (kind, *places), *_ = re.findall(pattern, html, re.DOTALL)
    reach = 0.17 * 1.05
    expected = [50 + 50 * 0.07 / reach, 50 * 0.1 / reach, 50 + 50 * 0.12 / reach]
    assert [float(place) for place in places] == pytest.approx(expected, abs=0.1)
    (turned, *_), *_ = re.findall(pattern, page(study(difference=-0.12)), re.DOTALL)
    assert (kind, turned) == ("reach", "reach against")


# Sentences


def test_sentences_are_the_extremes_few_of_each_word_none_twice() -> None:
    one = study(mentions=300)
    copy = dataclasses.replace(max(one.mentions, key=lambda mention: mention.relevance), text=999)
    one = dataclasses.replace(
        one, mentions=(*one.mentions, copy), sentences={**one.sentences, 999: one.sentences[_top(one).text]}
    )
    above, below = extremes(one, 10)
    for found, sign in ((above, 1), (below, -1)):
        scores = [sign * part.mention.relevance for part in found]
        assert len(found) == 10
        assert scores == sorted(scores, reverse=True)
        assert min(scores) > 0
        assert max(Counter(part.mention.entity for part in found).values()) == EACH
    assert above[0].mention.relevance == _top(one).relevance
    assert len({(part.before, part.name, part.after) for part in above}) == 10
    order = sorted(one.mentions, key=lambda mention: -mention.relevance)
    kept = {part.mention.relevance for part in above}
    for mention in order[: [m.relevance for m in order].index(above[-1].mention.relevance)]:
        of_word = [part for part in above if part.mention.entity == mention.entity]
        assert mention.relevance in kept or len(of_word) == EACH  # nothing is skipped without a reason


def _top(one: BiasStudy) -> Mention:
    return max(one.mentions, key=lambda mention: mention.relevance)


@pytest.mark.parametrize(("relevance", "missing"), [(0.4, "negative"), (-0.4, "positive")])
def test_a_sign_that_no_mention_has_is_not_shown_under_its_name(relevance: float, missing: str) -> None:
    html = page(one_sentence("anna is fine", 0, 4, relevance))
    assert f"No mention speaks for “{missing}”" in html
    assert html.count("<mark ") == 1


def test_names_are_marked_in_the_shared_colours() -> None:
    one = study()
    marks = re.findall(
        r'<mark style="--l:(#\w+);--li:#\w+;--d:(#\w+);[^"]*" data-score="([^"]+)">(.*?)</mark>', page(one)
    )
    assert len(marks) == 20
    scale = max(abs(mention.relevance) for mention in one.mentions)
    for light, dark, score, name in marks:
        assert light == hexadecimal(shade(float(score), scale, LIGHT))
        assert dark == hexadecimal(shade(float(score), scale, DARK))
        assert name in {entity.name for entity in one.entities}


@pytest.mark.parametrize(
    ("before", "after"),
    [("word " * 200, " word" * 200), ("", " word" * 200), ("word " * 200, ""), ("字" * 500, "字" * 500)],
)
def test_long_texts_are_cut_around_the_mention(before: str, after: str) -> None:
    text = f"{before}anna{after}"
    one = one_sentence(text, len(before), len(before) + 4)
    cut = excerpt(one, one.mentions[0])
    assert cut.name == "anna"
    assert ROOM / 2 < len(cut.before) + len(cut.name) + len(cut.after) <= ROOM + 4
    assert cut.before.startswith("…") == bool(before)
    assert cut.after.endswith("…") == bool(after)
    assert before.endswith(cut.before.lstrip("… "))
    assert after.startswith(cut.after.rstrip("… "))
    assert "wor…" not in cut.after
    assert f"{cut.before}anna{cut.after}".strip() in read(page(one)).text


def test_a_name_longer_than_a_line_is_cut_too() -> None:
    one = one_sentence("x" * 2000, 0, 2000)
    assert len(excerpt(one, one.mentions[0]).name) == ROOM


def test_text_from_right_to_left_keeps_its_own_direction() -> None:
    text = "السيدة فاطمة ممثلة رائعة"
    one = one_sentence(text, 7, 12)
    html = page(one)
    assert re.search(r'<p dir="auto">السيدة <mark [^>]*>فاطمة</mark> ممثلة رائعة</p>', html)
    assert "<bdi>فاطمة</bdi>" in html


def test_text_cannot_command_a_terminal() -> None:
    one = one_sentence("anna \x1b[31m\x07is\nfine", 0, 4)
    output = io.StringIO()
    show(one, Console(file=output, width=200))
    assert r"[anna] \x1b[31m\x07is↵fine" in output.getvalue()


# The figure


@pytest.mark.parametrize(
    "values",
    [[0.3, -0.2, 0.0, 1.4], [0.0, 0.0], [5.0], [-1e-9, -2e-9], [0.1 * i for i in range(-50, 30)], []],
)
def test_bars_hold_every_mention_and_meet_at_zero(values: list[float]) -> None:
    shared = bins(values)
    shares = shared.shares(values)
    assert sum(shares) == pytest.approx(float(bool(values)))
    assert shared.first <= -1 <= 0 <= shared.last
    assert len(shares) <= 42
    right = sum(shares[-shared.first :])
    assert right == pytest.approx(sum(value >= 0 for value in values) / len(values) if values else 0)


def test_a_few_mentions_far_out_do_not_flatten_the_others_and_are_told() -> None:
    one = study(mentions=1000)
    far = tuple(dataclasses.replace(mention, relevance=40.0) for mention in one.mentions[:3])
    one = dataclasses.replace(one, mentions=(*far, *one.mentions[3:]))
    shared = bins([mention.relevance for mention in one.mentions])
    assert shared.width * (shared.last + 1) < 1
    assert sum(shared.shares([mention.relevance for mention in one.mentions])) == pytest.approx(1)
    beyond = sum(
        not shared.first * shared.width <= m.relevance < (shared.last + 1) * shared.width for m in one.mentions
    )
    assert shared.beyond == beyond >= 3
    assert f"The outer bars include {beyond} mentions beyond the axis" in histograms_caption(one)
    assert "beyond the axis" not in histograms_caption(one_sentence("anna", 0, 4))


@pytest.mark.parametrize("groups", [("female",), ("female", "male", "ambiguous")])
def test_the_figure_has_a_panel_for_each_group(groups: tuple[str, ...], tmp_path: Path) -> None:
    one = study(groups=groups)
    draw_histograms(one, tmp_path / "figure.png")
    pixels = imread(tmp_path / "figure.png")[..., :3]
    assert pixels.shape[0] > 200 * 1.3 * len(groups)
    red, blue = coloured(tmp_path / "figure.png")
    assert red.mean() > 0.01
    assert blue.mean() > 0.01
    assert red.nonzero()[1].min() > blue.nonzero()[1].max() - 2  # against on the left, for on the right
    html = page(one)
    for name in groups:
        assert re.search(rf"<text[^>]*>{name}", html)


@pytest.mark.parametrize("sign", [1, -1])
def test_bars_beside_zero_have_the_colour_of_their_side(sign: int, tmp_path: Path) -> None:
    one = one_sentence("anna", 0, 4)
    mentions = tuple(dataclasses.replace(one.mentions[0], relevance=sign * value) for value in (0.001, 0.001, 1.0))
    draw_histograms(dataclasses.replace(one, mentions=mentions), tmp_path / "figure.png")
    red, blue = coloured(tmp_path / "figure.png")
    assert (bool(red.any()), bool(blue.any())) == (sign > 0, sign < 0)


def coloured(path: Path) -> list[Any]:
    """Which pixels are red, and which are blue."""
    pixels = imread(path)[..., :3]
    return [abs(pixels - [part / 255 for part in end]).max(axis=2) < 0.02 for end in (FOR, AGAINST)]


# The terminal


@pytest.mark.parametrize("width", [200, 80, 50])
def test_the_terminal_shows_every_number_at_any_width(width: int) -> None:
    one = study(groups=("female", "male", "ambiguous"), mentions=200)
    output = io.StringIO()
    show(one, Console(file=output, width=width))
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(output.getvalue().split())
    cells = [*wording.group_cells(one), *wording.swap_cells(one.swaps)]
    cells += [(*row[:3], *row[4:]) for row in wording.difference_cells(one.differences)]
    for row in [*cells, *wording.naive_cells(one)]:
        assert all(cell in text for cell in row[1:]), row
    for part in sentences(one):
        assert part in text
    assert "10 words between these ends are not shown" in text


def test_a_terminal_with_colours_marks_names_in_them() -> None:
    output = io.StringIO()
    show(
        one_sentence("so anna is", 3, 7), Console(file=output, width=80, force_terminal=True, color_system="truecolor")
    )
    assert "48;2;178;24;43m anna " in output.getvalue()


@in_a_browser
def test_in_a_browser_the_page_shows_in_light_and_dark(pages: Pages) -> None:
    opened = pages.open(page(study()), height=2400)
    found = read(opened.content())
    assert "Does the model treat these groups of words alike?" in found.text
    check_light_and_dark(opened)
