"""The page of a comparison: a table with a row for each method."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from itertools import pairwise

import pytest

from conserva import Comparison
from conserva.engine.ledger import Ledger
from conserva.results.explanation import Explanation
from conserva.views.comparison_page import fragment, page
from conserva.views.verdict import agreement
from conserva.views.wording import gap_notes, ledger_line, number
from made_up_explanations import explanation
from made_up_images import explained

NAMES = ["[CLS]", "good", "<b>", "film"]


def by(method: str, scores: tuple[float, ...], **changes: object) -> Explanation:
    return explanation(NAMES, method=method, scores=scores, **changes)


COMPARED = Comparison(
    (
        by("gi", (0.0, 0.5, -2.0, 1.0)),
        by("exact", (0.1, 1.0, 2.0, 3.0), ledger=Ledger.of(1.5, 6.1, -4.0, -0.6)),
        by("rollout", (0.0, 0.3, 0.2, 0.1), ledger=None),
    ),
    {"<a-flow>": "needs <maps>"},
)


def rows(text: str) -> list[list[str]]:
    """Return the cells of each row as text."""
    table = re.search('<table class="methods.*?</table>', text, re.DOTALL)
    assert table
    found = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table[0], re.DOTALL)
    return [
        [
            unescape(re.sub("<.*?>", "", cell)).strip()
            for cell in (name, *re.findall("<td.*?>(.*?)</td>", cells, re.DOTALL))
        ]
        for name, cells in found
    ]


def test_each_method_has_one_row_with_its_ledger_and_correlation() -> None:
    for text in (page(COMPARED), fragment(COMPARED), COMPARED._repr_html_()):
        assert [[row[0], row[1], *row[3:]] for row in rows(text)] == [
            ["gi", "[CLS]good<b>film", "+0.50"],
            ["exact", "[CLS]good<b>film", ""],
            ["rollout", "[CLS]good<b>film", "-1.00"],
        ]
        ledgers = ["".join(row[2].split()) for row in rows(text)]
        assert ledgers[1:] == [
            "inputs+6.100positions-4.000biases-0.600gap+3e-16=output+1.500",
            "none:itdoesnotsplittheoutput",
        ]
        assert "rank correlation<br>with <bdi>exact</bdi>" in text


def test_without_the_default_method_the_first_is_the_reference() -> None:
    found = page(Comparison((COMPARED[0], COMPARED[2])))
    assert "with <bdi>gi</bdi>" in found
    assert [row[-1] for row in rows(found)] == ["", "-0.50"]
    assert "correlations between all methods" not in found  # two methods have a single one


def test_each_row_has_the_colours_of_its_own_scale() -> None:
    table = page(COMPARED).partition("</table>")[0]
    assert re.findall(r"--s:100%", table) == ["--s:100%"] * 3


def test_ledgers_are_waterfalls_on_one_axis_with_their_sums_as_labels() -> None:
    table = page(COMPARED).partition("</table>")[0]
    assert table.count('<div class="bars steps" role="img"') == 2
    for one in COMPARED[:2]:
        assert f'aria-label="{ledger_line(one)}"' in table
    widths = re.findall(r"--from:([\d.]+)%;--wide:([\d.]+)%", table)[5:]
    levels = [0.0, 6.1, 2.1, 1.5, 1.5]
    expected = [(min(a, b), abs(a - b)) for a, b in pairwise(levels)]
    assert [(float(left), float(wide)) for left, wide in widths] == [
        (pytest.approx(100 * left / 6.1, abs=0.06), pytest.approx(100 * wide / 6.1, abs=0.06))
        for left, wide in [*expected, (0.0, 1.5)]
    ]


def test_all_correlations_are_in_a_folded_table() -> None:
    found = page(COMPARED).partition("rank correlations between all methods</summary>")[2]
    cells = re.findall(
        r'<tr><th scope="row" dir="auto">(.*?)</th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>', found
    )
    assert [tuple(map(str.strip, row)) for row in cells] == [
        ("gi", "+1.00", "+0.50", "-0.50"),
        ("exact", "+0.50", "+1.00", "-1.00"),
        ("rollout", "-0.50", "-1.00", "+1.00"),
    ]


def test_methods_that_do_not_apply_come_last_with_their_reason() -> None:
    found = page(COMPARED)
    assert found.index("methods that do not apply: &lt;a-flow&gt;") > found.index("each method by itself")
    assert "<dt>&lt;a-flow&gt;</dt><dd>needs &lt;maps&gt;</dd>" in found
    assert "do not apply" not in page(Comparison(COMPARED.explanations))


def test_if_no_method_applies_the_reasons_are_shown() -> None:
    found = page(Comparison((), {"gi": "why"}))
    assert "No method applies." in found
    assert "<dd>why</dd>" in found
    assert "<table" not in found


def test_pictures_are_cards() -> None:
    found = page(Comparison((explained(), explained(method="gi"))))
    assert '<table class="methods cards">' in found
    assert found.partition("</table>")[0].count("<svg") == 2


def test_a_page_of_a_comparison_runs_no_script() -> None:
    assert "<script" not in page(COMPARED)
    assert "script-src" not in page(COMPARED)


def test_the_verdict_tells_whether_methods_agree_on_the_strongest_feature() -> None:
    a, b = (explanation(["dull", "joy"], special=(False, False), scores=scores) for scores in ((-1.0, 2.0), (1.5, 0.1)))
    same, other = replace(a, method="ah+ln"), replace(b, method="gi")
    assert agreement([a, same]) == "“joy” counts most for it by every method"
    assert agreement([a, same, other]) == "“joy” counts most for it by exact and ah+ln; “dull” counts most for it by gi"
    assert agreement([a]) == ""
    assert "“dull” counts most for it by gi." in unescape(page(Comparison((a, same, other))))


def test_scores_without_a_sign_do_not_count_for_or_against_anything() -> None:
    a = explanation(["dull", "joy"], special=(False, False), scores=(-1.0, 2.0))
    unsigned = replace(a, method="rollout", scores=(0.3, 0.7), ledger=None)
    assert agreement([a, unsigned]) == "“joy” counts most for it by exact; “joy” has the highest score by rollout"


def test_gaps_of_one_cause_share_a_note() -> None:
    gaps = {"gi": 2.0, "ah+ln": 1.0, "ig:steps=9": 0.5, "exact": 0.25, "exact:gamma=0.1": 0.0, "ah": -0.5}
    others, rounding = gap_notes(
        [replace(COMPARED[0], method=name, ledger=Ledger(1.0, 0.0, 0.0, gap)) for name, gap in gaps.items()]
    )
    output = COMPARED[0].output
    attributed = {name: number(output - gap) for name, gap in gaps.items()}
    assert others.startswith(
        f"Large gap: of the output {number(output)}, gi attributes {attributed['gi']}, ah+ln attributes "
        f"{attributed['ah+ln']}, ig:steps=9 attributes {attributed['ig:steps=9']} and ah attributes {attributed['ah']}."
    )
    assert "Do not read these scores" in others
    assert "--rules gi,ah+ln,ah --text" in others
    assert rounding.startswith(f"Large gap: of the output {number(output)}, exact attributes")
    assert "rounding errors" in rounding


def test_methods_are_said_what_they_are() -> None:
    assert "<summary>what these methods are</summary>" in page(COMPARED)
    assert "Gradient x Input" in page(Comparison((replace(COMPARED[0], method="gi:gamma=0.1"),)))
