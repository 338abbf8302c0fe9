"""What a result says: signs for both metrics, and nothing that an interval does not carry."""

import dataclasses

import pytest

import conserva
from conserva.evaluation.result import Pair
from conserva.paper.experiments import findings
from conserva.paper.experiments.plan import OURS, ROWS
from made_up_experiments import (
    AH,
    AUAC,
    GI,
    LN,
    PAPER,
    REACH,
    TITLES,
    evaluation,
    mean_of,
    result,
)


@pytest.mark.parametrize("metric", ["auac", "au_mse"])
@pytest.mark.parametrize("rival", [GI, AH, "gae", "leave-one-out"])
def test_an_advantage_is_positive_where_a_method_is_better(metric: str, rival: str) -> None:
    for dataset in AUAC:
        one = evaluation(dataset)
        gain = mean_of(dataset, metric, OURS) - mean_of(dataset, metric, rival)
        gain *= 1 if metric == "auac" else -1
        found, back = findings.advantage(one, metric, OURS, rival), findings.advantage(one, metric, rival, OURS)
        assert (found.mean, found.low, found.high) == pytest.approx((gain, gain - REACH[metric], gain + REACH[metric]))
        assert (back.mean, back.low, back.high) == pytest.approx((-gain, -gain - REACH[metric], -gain + REACH[metric]))


@pytest.mark.parametrize(
    ("dataset", "metric", "level", "ahead"),
    [
        ("sst2", "auac", (), ()),
        ("sst2", "au_mse", (), ()),
        ("semaine", "auac", ("LRP (AH)",), ()),
        ("semaine", "au_mse", (), ("GI",)),
    ],
)
def test_a_verdict_sorts_the_papers_methods(
    dataset: str, metric: str, level: tuple[str, ...], ahead: tuple[str, ...]
) -> None:
    found = findings.verdict(evaluation(dataset), metric)
    others = tuple(TITLES[method] for method in PAPER if method not in (OURS, LN))
    assert (found.level, found.ahead) == (level, ahead)
    assert found.beaten == tuple(title for title in others if title not in (*level, *ahead))
    assert found.best == (dataset == "sst2")


@pytest.mark.parametrize(
    ("low", "high", "place"),
    [(0.0, 0.2, "level"), (-0.2, 0.0, "level"), (0.0, 0.0, "level"), (1e-9, 0.2, "beaten"), (-0.2, -1e-9, "ahead")],
)
def test_an_interval_that_touches_zero_tells_nothing(low: float, high: float, place: str) -> None:
    one = evaluation("sst2")
    others = tuple(pair for pair in one.pairs if {pair.a, pair.b} != {OURS, GI})
    one = dataclasses.replace(one, pairs=(*others, Pair("auac", OURS, GI, (low + high) / 2, low, high)))
    found = findings.verdict(one, "auac")
    assert [key for key in ("beaten", "level", "ahead") if "GI" in getattr(found, key)] == [place]


def test_alone_a_method_is_not_the_best() -> None:
    alone = evaluation("sst2", tuple(method for method in PAPER if method != OURS))
    assert not findings.verdict(alone, "auac").best


def test_the_best_mean_of_a_group() -> None:
    assert findings.best_of(evaluation("sst2"), "auac") == OURS
    assert findings.best_of(evaluation("semaine"), "auac") == AH
    assert findings.best_of(evaluation("semaine"), "au_mse") == GI
    assert findings.best_of(evaluation("semaine", (GI,)), "au_mse") == OURS
    assert findings.best_of(evaluation("sst2", PAPER), "auac") is None


def test_what_is_released_stands_beside_its_definition() -> None:
    found = {row.title: findings.definition_of(row).title for row in ROWS if row.group == "released"}
    assert found == {
        "A-Last, all rows": "A-Last",
        "Rollout, all rows": "Rollout",
        "GAE as gradient rollout": "GAE",
        "LRP (AH), gamma .01": "LRP (AH)",
        "LRP (AH+LN), gamma .01": "LRP (AH+LN)",
    }
    with pytest.raises(conserva.Error, match="not a variant"):
        findings.definition_of(ROWS[0])


def test_shares_orders_and_spreads() -> None:
    one = evaluation("sst2", (AH,))
    assert findings.share_of_random(one, "au_mse", OURS) == pytest.approx(1.5 / 4)
    assert findings.share_of_random(one, "au_mse", AH) is None
    assert findings.share_of_random(evaluation("sst2", ("random",)), "au_mse", OURS) is None
    assert findings.published_share("au_mse", "sst2", OURS) == pytest.approx(1.564 / 3.977)
    assert findings.published_share("au_mse", "semaine", OURS) is None
    trained = result("semaine", (AH,)).trained
    assert findings.not_ahead(trained, "auac", OURS, GI) == [1]
    assert findings.not_ahead(trained, "auac", OURS, "gae") == []
    assert findings.not_ahead(trained, "au_mse", OURS, GI) == [0, 1]
    assert findings.not_ahead(trained, "au_mse", GI, GI) == [0, 1]
    assert findings.not_ahead(trained, "auac", OURS, AH) is None
    assert findings.spread([0.1, 0.5, 0.2]) == pytest.approx(0.2)
