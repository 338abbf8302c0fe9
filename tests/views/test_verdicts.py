"""Verdicts: one sentence that claims no more than the numbers, first on the page and in the terminal."""

import dataclasses
import io
import re
from functools import cache
from html import unescape
from typing import Any

import pytest
from rich.console import Console

import conserva
from browser import Pages, in_a_browser
from conserva.bias_study.result import BiasStudy, Swap
from conserva.engine.ledger import Ledger
from conserva.evaluation.result import METRICS, Evaluation, Pair
from conserva.views import audit_page, audit_terminal, bias_page, bias_summary, evaluation_page, evaluation_terminal
from conserva.views.audit_wording import verdict as audit_verdict
from conserva.views.bias_wording import verdict as bias_verdict
from conserva.views.evaluation_wording import verdict as evaluation_verdict
from flat_text import flat
from made_up_audits import audit
from made_up_bias import interval, study
from made_up_evaluations import evaluation

# Audits


@pytest.mark.parametrize(
    ("rules", "present", "absent"),
    [
        (["exact"], ["Under “exact”, explanations of sentiment add up to the output"], ["not"]),
        (["gi"], ["Under “gi” (", "%: relevance is lost)", "do not add up"], ["they do not"]),
        (["ah+ln", "exact"], ["Under “exact”", "add up to the output; under “ah+ln” (", "they do not"], []),
        (["gi", "ah+ln", "exact"], ["under “gi” (", "%: relevance is lost) and “ah+ln” ("], []),
    ],
)
def test_of_audits(rules: list[str], present: list[str], absent: list[str]) -> None:
    said = audit_verdict([audit(name) for name in rules])
    assert all(part in said for part in present), said
    assert not any(part in said for part in absent), said


def test_of_an_audit_follows_from_its_worst_sample() -> None:
    def with_gap(gap: float, **changes: object) -> conserva.Audit:
        ledgers = Ledger(2.0, 0.0, 0.0, 0.0), Ledger(-4.0 - gap, 0.0, 0.0, gap)
        return audit("exact", outputs=(2.0, -4.0), ledgers=ledgers, **changes)

    one = with_gap(0.004)
    assert "add up to the output:" in audit_verdict([one])
    assert "do not add up" in audit_verdict([with_gap(-0.0041)])
    twice = with_gap(4.0, ledger=Ledger(4.0, 0.0, 0.6, -1.0))
    assert "(33.3%: relevance is counted twice)" in audit_verdict([twice])
    lost = with_gap(-2.0, ledger=Ledger(-2.0, 0.0, 0.0, -2.0), output=-4.0)
    assert "(50.0%: relevance is lost)" in audit_verdict([lost])
    with pytest.raises(conserva.Error, match="no audit"):
        audit_verdict([])


# Evaluations


def decided(**best: str) -> Evaluation:
    """An evaluation of three methods and a random order, with a surely best method for some metrics."""
    one = evaluation(("random", "gi", "ah+ln", "exact"))
    pairs = []
    for pair in one.pairs:
        first = best.get(pair.metric)
        sign = 1 if pair.metric not in ("au_mse", "sufficiency") else -1
        mean = 0.0 if first not in (pair.a, pair.b) else 1.0 * sign if first == pair.a else -1.0 * sign
        pairs.append(Pair(pair.metric, pair.a, pair.b, mean, mean - 0.5, mean + 0.5))
    results = [
        dataclasses.replace(
            result,
            **{
                metric: dataclasses.replace(getattr(result, metric), mean=9.0 if metric != "sufficiency" else -9.0)
                if metric != "au_mse"
                else dataclasses.replace(result.au_mse, mean=-9.0)
                for metric, name in best.items()
                if name == result.method
            },
        )
        for result in one.methods
    ]
    return dataclasses.replace(one, pairs=tuple(pairs), methods=tuple(results))


def test_of_an_evaluation() -> None:
    assert evaluation_verdict(decided(**dict.fromkeys(METRICS, "exact"))) == (
        "“exact” is surely the best of 3 methods on every measure."
    )
    assert evaluation_verdict(decided(auac="exact", au_mse="gi", aupc="exact")) == (
        "“exact” is surely the best of 3 methods on AUAC and AUPC, “gi” on AU-MSE; on comprehensiveness and "
        "sufficiency no method is."
    )
    assert evaluation_verdict(decided(aupc="gi")) == (
        "“gi” is surely the best of 3 methods on AUPC; on AUAC the best may be “exact”, “ah+ln” or “gi”; on AU-MSE, "
        "comprehensiveness and sufficiency no method is."
    )
    assert evaluation_verdict(decided()) == (
        "On these samples no method is surely the best of 3 methods on any measure; on AUAC the best may be “exact”, "
        "“ah+ln” or “gi”."
    )


def test_a_method_that_is_not_better_than_a_random_order_is_not_surely_the_best() -> None:
    one = decided(auac="exact")
    assert one.surely_best("auac") is one.methods[3]
    pairs = [
        dataclasses.replace(pair, low=-0.1, high=2.1) if {pair.a, pair.b} == {"random", "exact"} else pair
        for pair in one.pairs
        if pair.metric == "auac"
    ]
    level = dataclasses.replace(one, pairs=tuple(pairs))
    assert level.surely_best("auac") is None
    assert "surely the best of 3 methods on any measure" in evaluation_verdict(level)


def test_of_an_evaluation_without_comparisons_or_methods() -> None:
    assert "were not compared" in evaluation_verdict(evaluation(pairs=()))
    assert "no explanation method" in evaluation_verdict(evaluation(("random", "leave-one-out")))
    alone = evaluation_verdict(evaluation(("random", "exact")))
    assert alone == "“exact” is surely better than a random order on every measure."
    assert "on any measure" in evaluation_verdict(evaluation(("random", "exact"), width=5))
    missing = evaluation(("gi", "exact"))
    missing = dataclasses.replace(missing, pairs=tuple(pair for pair in missing.pairs if pair.metric == "aupc"))
    assert "on AUPC; on " in evaluation_verdict(missing)


def test_the_gap_of_a_ledger_is_not_named_in_an_evaluation() -> None:
    one = evaluation()
    out = io.StringIO()
    evaluation_terminal.show(one, Console(file=out, width=100))
    page = flat(re.sub("<style>.*?</style>", "", page_of("evaluation"), flags=re.DOTALL))
    for said in (page, out.getvalue()):
        assert not re.search(r"\bgap\b", said)
    assert "distance from the output" in page
    assert "dist.: the mean distance from the output" in " ".join(out.getvalue().split())


# Bias studies


def swaps(*agree: bool) -> tuple[Swap, ...]:
    return tuple(Swap(f"w{i}", "female", 5, 0.3, interval(0.2, 0.1), one) for i, one in enumerate(agree))


BIAS: dict[str, tuple[BiasStudy, str]] = {
    "nothing is shown": (
        study(p=0.3),
        "As far as these texts can tell, yes: no difference between the groups is shown. Differences of up to 0.170 "
        "logits (",
    ),
    "the largest limit of all pairs counts": (
        study(groups=("female", "male", "ambiguous"), p=0.3, difference=-0.2),
        "Differences of up to 0.250 logits",
    ),
    "swaps agree": (
        study(swaps=swaps(True, True, False)),
        "No: words of “female” speak more for “positive” than words of “male”, by 0.120 logits, and replacing words "
        "changed the answer as predicted for 2 of 3 words.",
    ),
    "half of the swaps agree": (study(swaps=swaps(True, False)), "Perhaps not: "),
    "no swap agrees": (study(swaps=swaps(False)), "for 0 of 1 word, so the sentences may be the cause."),
    "no swaps": (study(swaps=()), "the words or their sentences are the cause was not checked."),
    "turned": (study(difference=-0.12), "words of “male” speak more for “positive” than words of “female”"),
    "three pairs": (study(groups=("female", "male", "ambiguous")), "(2 more pairs of groups differ too)"),
    "one group": (study(groups=("female",), differences=()), "cannot tell: no two groups were compared"),
    "no mention": (dataclasses.replace(study(), mentions=()), "cannot tell: no word of a group occurs"),
}


@pytest.mark.parametrize("name", BIAS)
def test_of_a_bias_study(name: str) -> None:
    one, part = BIAS[name]
    assert part in bias_verdict(one)


# Where they stand

VIEWS: dict[str, tuple[Any, Any, Any, str]] = {
    "audit": (audit_page.page, audit_terminal.compare, [audit("gi"), audit()], audit_verdict([audit("gi"), audit()])),
    "evaluation": (evaluation_page.page, evaluation_terminal.show, evaluation(), evaluation_verdict(evaluation())),
    "bias": (bias_page.page, bias_summary.show, study(), bias_verdict(study())),
}


@cache
def page_of(name: str) -> str:
    page, _, result, _ = VIEWS[name]
    return str(page(result))


@pytest.mark.parametrize("name", VIEWS)
def test_the_verdict_is_first_on_the_page_then_the_picture_then_tables(name: str) -> None:
    html, said = page_of(name), VIEWS[name][-1]
    assert unescape(re.search(r'<p class="verdict">(.*?)</p>', html).group(1)) == said  # type: ignore[union-attr]
    places = [html.index(part) for part in ('<p class="verdict">', "<svg ", "<table")]
    if name != "audit":  # its first picture are the ledgers
        assert places == sorted(places)
    assert html.index('<p class="verdict">') < html.index("<section")


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("system", [None, "truecolor"])
@pytest.mark.parametrize("name", VIEWS)
def test_the_verdict_is_first_in_the_terminal(name: str, width: int, system: Any) -> None:
    _, show, result, said = VIEWS[name]
    out = io.StringIO()
    show(result, Console(file=out, width=width, color_system=system, force_terminal=system is not None))
    text = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert max(map(len, text.splitlines())) <= width
    assert " ".join(said.split()) in " ".join(text.split())[: 400 + len(said)]
    assert not re.search(r"\x1b\[[\d;]*\b(30|37)m", out.getvalue())


@pytest.mark.parametrize("name", VIEWS)
def test_long_tables_offer_the_rest_and_short_ones_do_not(name: str) -> None:
    folds = re.split('<div class="fold">', page_of(name))[1:]
    assert len(folds) >= 3
    for fold in folds:
        inside = fold.partition("</section>")[0]
        most = max(
            [len(re.findall("<tr", body)) for body in re.findall("<tbody.*?</tbody>", inside, re.DOTALL)]
            or [inside.count("<li>")]
        )
        offered = re.findall(r"show all ([\d,]+) ", inside)
        assert offered[:1] == ([str(most)] if most > 5 else [])


ROWS = """() => Array.from(document.querySelectorAll(".fold")).map(fold => [
  ...Array.from(fold.querySelectorAll("tbody"), body => Array.from(body.rows)), Array.from(fold.querySelectorAll("li")),
].flatMap(part => part.length ? [part.filter(row => row.offsetParent).length] : []))"""
SEEN = """() => ({
  links: Array.from(document.querySelectorAll("nav a"), a => document.querySelectorAll(a.hash).length),
  clipped: Array.from(document.querySelectorAll(".conserva *")).filter(element => {
    if (element.closest(".scroll") || element.closest("svg")) return false;
    const {right, width} = element.getBoundingClientRect();
    return width && right > document.documentElement.clientWidth + 1;
  }).map(element => element.outerHTML.slice(0, 80)),
  drawn: Array.from(document.querySelectorAll("svg")).filter(svg => svg.getBoundingClientRect().width).length,
  wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
})"""


@in_a_browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", VIEWS)
def test_in_a_browser_tables_open_links_work_and_nothing_is_clipped(name: str, width: int, pages: Pages) -> None:
    opened = pages.open(page_of(name), width=width, height=800)
    before = opened.evaluate(ROWS)
    for box in opened.locator(".more").all():
        box.click()
    after, seen = opened.evaluate(ROWS), opened.evaluate(SEEN)
    assert [[min(5, count) for count in fold] for fold in after] == before
    assert max(map(max, after)) > 5
    assert set(seen["links"]) == {1}
    assert (seen["clipped"], seen["wide"]) == ([], False)
    assert seen["drawn"] == page_of(name).count("<svg ") / 2  # each figure once
