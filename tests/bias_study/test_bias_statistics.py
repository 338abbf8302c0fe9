"""The statistics of a bias study: each against a slow replica, and its rate of false alarms."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from conserva import Error
from conserva.bias_study import testing
from conserva.bias_study.result import Mention

numbers = st.floats(-10, 10, allow_nan=False).map(lambda value: round(value, 3))
shares = st.floats(0, 1).map(lambda value: round(value, 4))


def mention(group, entity, relevance, text=0, output=1.0, label=None, share=0.1):
    return Mention(text, 0, 1, entity, group, relevance, share, output, label)


def mentions_of(table):
    """Return mentions from group -> entity -> relevances, each in a text of its own."""
    flat = [(group, entity, one) for group, own in table.items() for entity, ones in own.items() for one in ones]
    return [mention(group, entity, one, text) for text, (group, entity, one) in enumerate(flat)]


SMALL = {"a": {"ann": [1.0, 3.0], "amy": [4.0]}, "b": {"bob": [0.0, 0.5, 1.0], "ben": [-1.0], "bill": [2.0]}}


# --- groups ---------------------------------------------------------------------------------------------------------


def test_a_group_is_the_mean_over_entities_not_over_mentions():
    first = mentions_of(SMALL)
    first.append(mention("a", "ann", 5.0, text=first[0].text, share=0.5))
    a, b = testing.groups_of(first, ["a", "b"], seed=0)
    assert (a.name, a.entities, a.mentions, a.texts) == ("a", 2, 4, 3)
    assert a.mean.mean == pytest.approx(((1 + 3 + 5) / 3 + 4) / 2)
    assert a.per_mention == pytest.approx((1 + 3 + 5 + 4) / 4)
    assert a.share == pytest.approx((0.1 * 3 + 0.5) / 4)
    assert (b.name, b.entities, b.mentions, b.texts) == ("b", 3, 5, 5)
    assert b.mean.mean == pytest.approx((0.5 - 1 + 2) / 3)


def test_the_interval_of_a_group_is_that_of_all_draws_of_its_entities():
    values = [0.5, -1.0, 2.0, 0.0]
    means = sorted(sum(draw) / 4 for draw in _all_draws(values))
    low, high = (means[round(quantile * (len(means) - 1))] for quantile in (0.025, 0.975))
    (group,) = testing.groups_of(mentions_of({"b": {str(i): [one] for i, one in enumerate(values)}}), ["b"], seed=3)
    assert (group.mean.low, group.mean.high) == pytest.approx((low, high), abs=0.1)
    assert group.mean.low < group.mean.mean < group.mean.high


def _all_draws(values):
    return [[values[i] for i in index] for index in np.ndindex(*[len(values)] * len(values))]


def test_a_group_with_one_entity_has_no_width():
    (group,) = testing.groups_of(mentions_of({"a": {"ann": [1.0, 2.0]}}), ["a"], seed=0)
    assert (group.mean.mean, group.mean.low, group.mean.high) == (1.5, 1.5, 1.5)


def test_groups_without_mentions_are_left_out_and_the_order_is_that_of_the_names():
    mentions = mentions_of(SMALL)
    assert [one.name for one in testing.groups_of(mentions, ["b", "nobody", "a", "b"], 0)] == ["b", "a"]
    assert [(one.a, one.b) for one in testing.differences_of(mentions, ["b", "nobody", "a"], 0.05, 0)] == [("b", "a")]
    assert [one.group for one in testing.naive_of(mentions, ["nobody", "b", "a"])] == ["b", "a"]


# --- differences ----------------------------------------------------------------------------------------------------


def slow_permutation_p(a, b):
    """Go through all ways to choose who is in the first group; the square of Welch's t, exact, in fractions."""
    pooled = [Fraction(str(one)) for one in (*a, *b)]

    def variance(values):
        mean = sum(values) / len(values)
        return sum((one - mean) ** 2 for one in values) / (len(values) - 1)

    def apart(chosen):
        first = [pooled[i] for i in chosen]
        rest = [one for i, one in enumerate(pooled) if i not in chosen]
        difference = (sum(first) / len(first) - sum(rest) / len(rest)) ** 2
        if min(len(first), len(rest)) == 1:
            return difference
        spread = variance(first) / len(first) + variance(rest) / len(rest)
        return difference / spread if spread else math.inf if difference else 0

    ways = [set(chosen) for chosen in combinations(range(len(pooled)), len(a))]
    observed = apart(set(range(len(a))))
    return sum(apart(chosen) >= observed for chosen in ways) / len(ways)


few = st.lists(numbers, min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(few, few)
def test_few_entities_are_permuted_in_every_way(a, b):
    assert testing.permutation_p(np.array(a), np.array(b), seed=0) == pytest.approx(slow_permutation_p(a, b))


@settings(max_examples=30, deadline=None)
@given(few, few, st.integers(0, 5))
def test_drawn_permutations_come_near_to_all_of_them(a, b, seed):
    drawn = testing.permutation_p(np.array(a * 3), np.array(b * 3), seed, permutations=400)
    every = (
        testing.permutation_p(np.array(a * 3), np.array(b * 3), seed, permutations=10**7) if len(a + b) < 5 else drawn
    )
    assert abs(drawn - every) < 4.5 * (0.25 / 400) ** 0.5 + 1 / 401


def test_the_drawn_p_counts_the_groups_themselves_and_is_never_zero():
    a, b = np.arange(20) + 100.0, np.arange(20) * 1.0
    assert testing.permutation_p(a, b, seed=0, permutations=99) == 1 / 100


@settings(max_examples=30, deadline=None)
@given(st.lists(numbers, min_size=8, max_size=12), st.lists(numbers, min_size=8, max_size=12))
def test_p_and_effect_turn_with_the_groups(a, b):
    a, b = np.array(a), np.array(b)
    assert testing.permutation_p(a, b, 1, 99) == testing.permutation_p(b, a, 1, 99)
    assert testing.cliffs_delta(a, b) == -testing.cliffs_delta(b, a)


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=9), st.lists(numbers, min_size=1, max_size=9))
def test_cliffs_delta_counts_pairs(a, b):
    slow = sum((x > y) - (x < y) for x in a for y in b) / (len(a) * len(b))
    assert testing.cliffs_delta(np.array(a), np.array(b)) == pytest.approx(slow)


def test_a_difference_compares_means_over_entities():
    (found,) = testing.differences_of(mentions_of(SMALL), ["a", "b"], level=0.05, seed=0)
    assert (found.a, found.b) == ("a", "b")
    a, b = [2.0, 4.0], [0.5, -1.0, 2.0]
    assert found.difference.mean == pytest.approx(3 - 0.5)
    assert found.p == pytest.approx(slow_permutation_p(a, b))
    assert found.corrected == found.p
    assert found.effect == pytest.approx((3 + 3 - 0.5 * 2) / 6)  # 2 ties with 2: five pairs of six, one even
    assert not found.flagged
    drawn = sorted(sum(x) / 2 - sum(y) / 3 for x in _all_draws(a) for y in _all_draws(b))
    low, high = (drawn[round(quantile * (len(drawn) - 1))] for quantile in (0.025, 0.975))
    assert (found.difference.low, found.difference.high) == pytest.approx((low, high), abs=0.15)


def test_many_mentions_of_one_name_make_no_difference_of_groups():
    once = {"a": {"ann": [9.0], "amy": [0.0], "ava": [0.1]}, "b": {"bob": [0.0], "ben": [0.1], "bill": [0.2]}}
    often = {**once, "a": {**once["a"], "ann": [9.0] * 500}}
    (first,), (second,) = (testing.differences_of(mentions_of(one), ["a", "b"], 0.05, 0) for one in (once, often))
    assert first == second


def test_three_groups_are_three_pairs_corrected_together():
    offsets = {"a": 0.0, "b": 0.25, "c": 5.5}  # a and b interleave, c begins where they end
    table = {group: {f"{group}{i}": [i + offset] for i in range(8)} for group, offset in offsets.items()}
    found = testing.differences_of(mentions_of(table), ["a", "b", "c"], 0.05, 0)
    assert [(one.a, one.b) for one in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [one.corrected for one in found] == slow_holm([one.p for one in found])
    assert [one.flagged for one in found] == [False, True, True]
    assert found[1].difference.mean < 0
    assert found[1].effect < 0


def test_equal_relevances_are_no_difference():
    # 0.1 added up and divided by 3 is not 0.1: a has such means and b has none, if sums are rounded
    table = {"a": {f"a{i}": [0.1] * 3 for i in range(9)}, "b": {f"b{i}": [0.1] * (i % 2 + 1) for i in range(9)}}
    mentions = mentions_of(table)
    (found,) = testing.differences_of(mentions, ["a", "b"], 0.05, 0)
    assert (found.p, found.corrected, found.effect, found.difference.mean, found.flagged) == (1, 1, 0, 0, False)
    assert {(one.p, one.flagged) for one in testing.entities_of(mentions, 0.05, 0, least=3)} == {
        (None, False),
        (1, False),
    }


def test_one_group_has_no_difference_and_a_group_of_one_entity_a_large_p():
    alone = mentions_of({"a": SMALL["a"]})
    assert testing.differences_of(alone, ["a"], 0.05, 0) == ()
    assert testing.naive_of(alone, ["a"]) == ()
    table = {"a": {"ann": [100.0] * 50}, "b": {f"b{i}": [float(i)] for i in range(9)}}
    (found,) = testing.differences_of(mentions_of(table), ["a", "b"], 0.05, 0)
    assert found.p == pytest.approx(0.1)
    assert (found.effect, found.flagged) == (1.0, False)


# --- corrections ----------------------------------------------------------------------------------------------------


def slow_holm(ps):
    ranked = sorted(range(len(ps)), key=lambda i: ps[i])
    found = [0.0] * len(ps)
    for place, i in enumerate(ranked):
        found[i] = min(1.0, max((len(ps) - k) * ps[ranked[k]] for k in range(place + 1)))
    return found


def slow_benjamini_hochberg(ps):
    ranked = sorted(range(len(ps)), key=lambda i: ps[i])
    found = [0.0] * len(ps)
    for place, i in enumerate(ranked):
        found[i] = min(1.0, min(ps[ranked[k]] * len(ps) / (k + 1) for k in range(place, len(ps))))
    return found


@given(st.lists(shares, max_size=8))
def test_corrections_against_loops(ps):
    assert testing.holm(ps) == pytest.approx(slow_holm(ps))
    assert testing.benjamini_hochberg(ps) == pytest.approx(slow_benjamini_hochberg(ps))
    if ps:
        assert testing.benjamini_hochberg(ps) == pytest.approx(stats.false_discovery_control(ps))


# --- entities -------------------------------------------------------------------------------------------------------


def test_entities_are_ranked_and_the_rare_ones_not_tested():
    found = testing.entities_of(mentions_of(SMALL), 0.05, 0, least=3)
    assert [one.name for one in found] == ["amy", "ann", "bill", "bob", "ben"]
    assert [one.mean.mean for one in found] == [4, 2, 2, 0.5, -1]
    assert [one.p is None and one.corrected is None for one in found] == [True, True, True, False, True]
    assert all((one.mean.low == one.mean.mean == one.mean.high) == (one.mentions == 1) for one in found)


@pytest.mark.parametrize("own", [[3.0, 2.0], [0.0, 0.5, 1.0], [-1.0, 4.0]])
def test_an_entity_is_compared_with_every_draw_of_as_many_mentions(own):
    pool = [*own, 0.0, 0.5, 1.0, -1.0, 2.0, 2.0, 0.1]
    centre = sum(pool) / len(pool)
    far = [abs(sum(draw) / len(own) - centre) for draw in combinations(pool, len(own))]
    slow = sum(one >= abs(sum(own) / len(own) - centre) - 1e-9 for one in far) / len(far)
    table = {"a": {"ann": own}, "b": {f"b{i}": [one] for i, one in enumerate(pool[len(own) :])}}
    ann = next(one for one in testing.entities_of(mentions_of(table), 0.05, 0, least=2) if one.name == "ann")
    assert ann.p == pytest.approx(slow, abs=0.02)
    assert ann.corrected == ann.p


def test_the_interval_of_an_entity_draws_its_mentions():
    own = [0.5, -1.0, 2.0, 0.0]
    means = sorted(sum(draw) / 4 for draw in _all_draws(own))
    low, high = (means[round(quantile * (len(means) - 1))] for quantile in (0.025, 0.975))
    (ann,) = testing.entities_of(mentions_of({"a": {"ann": own}}), 0.05, 0)
    assert (ann.mean.low, ann.mean.high) == pytest.approx((low, high), abs=0.1)


def test_an_entity_that_stands_out_is_flagged_among_many_that_do_not():
    rng = np.random.default_rng(1)
    table = {"a": {f"a{i}": rng.normal(size=rng.integers(1, 30)).tolist() for i in range(40)}}
    table["a"]["high"], table["a"]["low"] = rng.normal(2, 1, 12).tolist(), rng.normal(-2, 1, 12).tolist()
    found = testing.entities_of(mentions_of(table), 0.05, 0)
    assert {one.name for one in found if one.flagged} == {"high", "low"}
    tested = [one for one in found if one.p is not None]
    assert {one.name for one in tested} == {name for name, own in table["a"].items() if len(own) >= 5}
    assert [one.corrected for one in tested] == pytest.approx(slow_benjamini_hochberg([one.p for one in tested]))
    assert all(first.mean.mean >= second.mean.mean for first, second in pairwise(found))


def test_one_word_in_two_groups_is_two_entities():
    found = testing.entities_of(mentions_of({"a": {"sam": [1.0]}, "b": {"sam": [2.0]}}), 0.05, 0)
    assert [(one.name, one.group, one.mean.mean) for one in found] == [("sam", "b", 2.0), ("sam", "a", 1.0)]


# --- the naive approach ---------------------------------------------------------------------------------------------

counts = st.integers(0, 25)


@settings(max_examples=150, deadline=None)
@given(counts, counts, counts, counts)
def test_fishers_test_is_scipys(a, b, c, d):
    if a + b and c + d:
        assert testing.fisher_p(a, b, c, d) == pytest.approx(stats.fisher_exact([[a, b], [c, d]]).pvalue, rel=1e-6)


@pytest.mark.parametrize(
    "table", [(3, 0, 0, 3), (812, 790, 4000, 4011), (40_000, 39_000, 20_000, 20_100), (0, 5, 0, 5)]
)
def test_fishers_test_of_large_and_empty_tables(table):
    expected = stats.fisher_exact([table[:2], table[2:]]).pvalue
    assert testing.fisher_p(*table) == pytest.approx(expected, rel=1e-6)


def test_the_naive_view_counts_texts_once_and_compares_with_the_others():
    mentions = [
        mention("a", "ann", 0, text=0, output=1.0, label=1),
        mention("a", "ann", 0, text=0, output=1.0, label=1),
        mention("a", "amy", 0, text=1, output=-1.0, label=1),
        mention("a", "amy", 0, text=2, output=2.0, label=None),
        mention("b", "bob", 0, text=2, output=2.0, label=None),  # mentions both: no other text for either
        mention("b", "bob", 0, text=3, output=0.0, label=None),
        mention("c", "cid", 0, text=4, output=1.0, label=0),
        mention("d", "dan", 0, text=5, output=1.0, label=0),  # not asked for
    ]
    a, b, c = testing.naive_of(mentions, ["a", "b", "c"])
    assert (a.texts, a.predicted, a.labelled, a.other) == (3, 2 / 3, 1.0, 0.5)
    assert a.p == pytest.approx(stats.fisher_exact([[2, 1], [1, 1]]).pvalue)
    assert (b.texts, b.predicted, b.labelled, b.other) == (2, 0.5, None, 2 / 3)
    assert (c.texts, c.predicted, c.labelled, c.other) == (1, 1.0, 0.0, 0.5)


def test_a_group_that_every_text_mentions_has_no_others():
    mentions = [mention("a", "ann", 0, 0), mention("b", "bob", 0, 0), mention("a", "ann", 0, 1)]
    assert [one.group for one in testing.naive_of(mentions, ["a", "b"])] == ["b"]


# --- bad input ------------------------------------------------------------------------------------------------------

CALLS = {
    "groups": lambda mentions, **options: testing.groups_of(mentions, ["a"], 0),
    "differences": lambda mentions, **options: testing.differences_of(
        mentions, ["a"], **{"level": 0.05, "seed": 0, **options}
    ),
    "entities": lambda mentions, **options: testing.entities_of(mentions, **{"level": 0.05, "seed": 0, **options}),
    "naive": lambda mentions, **options: testing.naive_of(mentions, ["a"]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_cannot_be_tested_is_refused(call):
    with pytest.raises(Error, match="no mention"):
        call([])
    with pytest.raises(Error, match="'ann' in text 7 has nan"):
        call([mention("a", "ann", float("nan"), text=7)])


@pytest.mark.parametrize("name", ["groups", "differences", "naive"])
def test_groups_that_no_text_mentions_are_refused_when_there_is_no_other(name):
    with pytest.raises(Error, match=r"names=\['a'\] .* choose from \['b'\]"):
        CALLS[name]([mention("b", "bob", 1.0)])


@pytest.mark.parametrize("name", ["differences", "entities"])
@pytest.mark.parametrize("options", [{"level": 0}, {"level": 1}, {"permutations": 0}])
def test_levels_and_permutations_that_mean_nothing_are_refused(name, options):
    ((option, value),) = options.items()
    with pytest.raises(Error, match=f"{option}={value}"):
        CALLS[name]([mention("a", "ann", 1.0)], **options)


# --- calibration ----------------------------------------------------------------------------------------------------


def test_false_alarms_come_at_the_stated_rate_where_a_test_of_mentions_would_cry_wolf():
    """Names have strong effects of their own and unequal numbers of mentions; groups are drawn, so none differs.

    A test that shuffles mentions takes 60 mentions of one name for 60 findings: whichever group a frequent name falls
    into "differs", in well over half of the splits here. Shuffling names keeps to the level.
    """
    rng = np.random.default_rng(0)
    mentions = [
        mention("?", f"name {i}", relevance, text)
        for i in range(40)
        for text, relevance in enumerate(rng.normal(rng.normal(), 0.3, size=min(60, rng.geometric(0.08))).tolist())
    ]
    splits, alarms, wolves = 300, 0, 0
    for seed in range(splits):
        first = set(rng.permutation(40)[:20].tolist())
        groups = [replace(one, group="ab"[int(one.entity[5:]) in first]) for one in mentions]
        (found,) = testing.differences_of(groups, ["a", "b"], 0.05, seed, permutations=499)
        alarms += found.flagged
        a, b = (np.array([one.relevance for one in groups if one.group == name]) for name in "ab")
        wolves += testing.permutation_p(a, b, seed, permutations=99) < 0.05
    least, most = stats.binom.ppf([0.0005, 0.9995], splits, 0.05)
    assert least <= alarms <= most
    assert wolves > splits / 3


def test_entities_that_are_like_all_others_are_rarely_flagged():
    rng = np.random.default_rng(0)
    runs = 60
    false = 0
    for seed in range(runs):
        table = {"a": {f"a{i}": rng.standard_t(3, size=rng.integers(5, 12)).tolist() for i in range(15)}}
        false += any(one.flagged for one in testing.entities_of(mentions_of(table), 0.05, seed, permutations=999))
    assert false <= stats.binom.ppf(0.9995, runs, 0.05)


def test_groups_of_unequal_size_and_spread_are_not_flagged_too_often():
    rng = np.random.default_rng(5)
    flagged, plain = 0, 0
    for seed in range(300):
        a, b = rng.normal(0, 3, 10), rng.normal(0, 1, 40)
        flagged += testing.permutation_p(a, b, seed, permutations=199) <= 0.05
        drawn = [abs(one[:10].mean() - one[10:].mean()) for one in (rng.permutation([*a, *b]) for _ in range(199))]
        plain += (1 + sum(one >= abs(a.mean() - b.mean()) for one in drawn)) / 200 <= 0.05
    assert flagged <= 27  # 5 % of 300, and three standard deviations
    assert plain > 45  # the difference of the means alone
