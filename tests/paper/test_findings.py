"""What a result says: signs for both metrics, and nothing that an interval does not carry."""

import dataclasses

import pytest

import conserva
import made_up_graphs
from conserva.evaluation.result import Evaluation, Pair
from conserva.paper.experiments.findings import TableColumn, columns, definition_of, published_share
from conserva.paper.experiments.rows import GRAPH_ROWS, OURS, TEXT_ROWS
from made_up_experiments import AH, AUAC, GI, PAPER, REACH, TITLES, evaluation, mean_of, result
from made_up_experiments import OURS as METHOD


def measured(dataset: str, missing: tuple[str, ...] = (), found: Evaluation | None = None) -> TableColumn:
    one = result(dataset, missing)
    return TableColumn(one if found is None else dataclasses.replace(one, evaluation=found))


@pytest.mark.parametrize("metric", ["auac", "au_mse"])
@pytest.mark.parametrize("rival", ["GI", "LRP (AH)", "GAE", "leave-one-out"])
def test_a_gain_is_positive_where_a_method_is_better(metric: str, rival: str) -> None:
    methods = {row.title: row.method for row in TEXT_ROWS}
    for dataset in AUAC:
        one = measured(dataset)
        gain = mean_of(dataset, metric, METHOD) - mean_of(dataset, metric, methods[rival])
        gain *= 1 if metric == "auac" else -1
        found, back = one.gain(metric, OURS, rival), one.gain(metric, rival, OURS)
        assert found is not None
        assert back is not None
        assert (found.mean, found.low, found.high) == pytest.approx((gain, gain - REACH[metric], gain + REACH[metric]))
        assert (back.mean, back.low, back.high) == pytest.approx((-gain, -gain - REACH[metric], -gain + REACH[metric]))
    assert measured("sst2", (AH,)).gain("auac", OURS, "LRP (AH)") is None


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
    found = measured(dataset).verdict(metric)
    others = tuple(TITLES[method] for method in PAPER if TITLES[method] not in (OURS, "LRP (LN)"))
    assert found is not None
    assert (found.level, found.ahead) == (level, ahead)
    assert found.beaten == tuple(title for title in others if title not in (*level, *ahead))
    assert found.best == measured(dataset).is_best(metric) == (dataset == "sst2")
    assert measured(dataset, (METHOD,)).verdict(metric) is None


@pytest.mark.parametrize(
    ("low", "high", "place"),
    [(0.0, 0.2, "level"), (-0.2, 0.0, "level"), (0.0, 0.0, "level"), (1e-9, 0.2, "beaten"), (-0.2, -1e-9, "ahead")],
)
def test_an_interval_that_touches_zero_tells_nothing(low: float, high: float, place: str) -> None:
    one = evaluation("sst2")
    others = tuple(pair for pair in one.pairs if {pair.a, pair.b} != {METHOD, GI})
    one = dataclasses.replace(one, pairs=(*others, Pair("auac", METHOD, GI, (low + high) / 2, low, high)))
    found = measured("sst2", found=one).verdict("auac")
    assert [key for key in ("beaten", "level", "ahead") if "GI" in getattr(found, key)] == [place]


def test_alone_a_method_is_not_the_best() -> None:
    assert not measured("sst2", tuple(method for method in PAPER if method != METHOD)).is_best("auac")


def test_the_best_mean_of_the_papers_methods() -> None:
    assert measured("sst2").best("auac") == OURS
    assert measured("semaine").best("auac") == "LRP (AH)"
    assert measured("semaine").best("au_mse") == "GI"
    assert measured("semaine", (GI,)).best("au_mse") == OURS
    assert measured("sst2", PAPER).best("auac") is None


def test_what_is_released_stands_beside_its_definition() -> None:
    found = {row.title: definition_of(row, TEXT_ROWS).title for row in TEXT_ROWS if row.group == "released"}
    assert found == {
        "A-Last, all rows": "A-Last",
        "Rollout, all rows": "Rollout",
        "GAE as gradient rollout": "GAE",
        "LRP (AH), gamma .01": "LRP (AH)",
        "LRP (AH+LN), gamma .01": "LRP (AH+LN)",
    }
    with pytest.raises(conserva.Error, match="not a variant"):
        definition_of(TEXT_ROWS[0], TEXT_ROWS)


def test_shares_and_orders() -> None:
    one = measured("sst2", (AH,))
    assert one.share_of_random("au_mse", OURS) == pytest.approx(1.5 / 4)
    assert one.share_of_random("au_mse", "LRP (AH)") is None
    assert measured("sst2", ("random",)).share_of_random("au_mse", OURS) is None
    assert published_share("au_mse", "sst2", METHOD) == pytest.approx(1.564 / 3.977)
    assert published_share("au_mse", "semaine", "a-flow") is None
    other = measured("semaine", (AH,))
    assert other.seeds_behind("auac", OURS, "GI") == [1]
    assert other.seeds_behind("auac", OURS, "GAE") == []
    assert other.seeds_behind("au_mse", OURS, "GI") == [0, 1]
    assert other.seeds_behind("au_mse", "GI", "GI") == [0, 1]
    assert other.seeds_behind("auac", OURS, "LRP (AH)") is None


def test_columns_of_graphs_are_maskings() -> None:
    every = columns(made_up_graphs.BOTH)
    assert [one.title for one in every] == [
        f"{name} {mask}" for name in ("BACE", "MNIST") for mask in made_up_graphs.MASKS
    ]
    assert every[0].names == ["BACE", "token"]
    assert [one.title for one in columns([result("sst2")])] == ["SST-2"]
    assert [one.best("auac") for one in every[3:]] == [OURS, OURS, "A-Last"]
    assert [row.title for row in GRAPH_ROWS[:15]] == [row.title for row in TEXT_ROWS[:15]]
