"""Statistics of mentions: groups with intervals, differences between groups, and conspicuous entities.

Mentions of the same name are not independent. So groups are compared by the means of their entities, which all have the
same weight: a few names with many mentions do not cause a difference between groups. For the same reason bootstrap
intervals of groups resample entities, not mentions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import comb, isfinite
from statistics import mean

import numpy as np

from ..errors import Error
from ..evaluation.comparison import Interval
from ..evaluation.statistics import LEVEL, RESAMPLES
from .result import Difference, Entity, Group, Mention, Naive

PERMUTATIONS = 10_000
LEAST = 5
"""The minimum number of mentions of an entity for a test; other entities are only ranked."""

_AT_ONCE = 1_000_000
"""The number of random numbers drawn at a time."""
_TIE = 1e-9
"""Tolerance for ties, relative to the largest number: sums in another order differ by rounding."""


def groups_of(mentions: Sequence[Mention], names: Sequence[str], seed: int) -> tuple[Group, ...]:
    """Return the groups with mentions, in the order of `names`.

    The interval is a bootstrap over entities; for a group with a single entity, its bounds equal the mean.
    """
    _check(mentions)
    means = _entity_means(mentions)
    groups = []
    for name in _mentioned(means, names):
        own = [mention for mention in mentions if mention.group == name]
        groups.append(
            Group(
                name,
                entities=len(means[name]),
                mentions=len(own),
                texts=len({mention.text for mention in own}),
                mean=interval_of(list(means[name].values()), seed),
                per_mention=mean(mention.relevance for mention in own),
                share=mean(mention.share for mention in own),
            )
        )
    return tuple(groups)


def differences_of(
    mentions: Sequence[Mention], names: Sequence[str], level: float, seed: int, permutations: int = PERMUTATIONS
) -> tuple[Difference, ...]:
    """Return the comparisons of all pairs of groups with mentions, in the order of `names`.

    The null hypothesis is that names are exchangeable between two groups, given the names: a group of one name among
    ten cannot have a p value below 0.1, however often it is mentioned. A group with a single entity contributes nothing
    to the width of the interval, which is then too narrow; the p value is not affected.

    The test is exact if names are exchangeable, and approximate for groups with equal means and different variances,
    since the statistic is Welch's t.

    It does not separate names from their sentences. All words have more relevance where the model is undecided, so
    groups that occur in different kinds of sentences can be flagged even if the model treats their names alike. Swaps,
    which keep the sentence, show whether the names are the cause.
    """
    _check(mentions, level, permutations)
    means = {group: np.array(list(own.values())) for group, own in _entity_means(mentions).items()}
    pairs = list(combinations(_mentioned(means, names), 2))
    ps = [permutation_p(means[a], means[b], seed, permutations) for a, b in pairs]
    return tuple(
        Difference(
            a,
            b,
            difference=_difference(means[a], means[b], seed),
            effect=cliffs_delta(means[a], means[b]),
            p=p,
            corrected=corrected,
            flagged=corrected < level,
        )
        for (a, b), p, corrected in zip(pairs, ps, holm(ps), strict=True)
    )


def entities_of(
    mentions: Sequence[Mention], level: float, seed: int, least: int = LEAST, permutations: int = PERMUTATIONS
) -> tuple[Entity, ...]:
    """Return all entities with mentions, in descending order of their mean relevance.

    Entities with at least `least` mentions are tested against equally many mentions drawn from all, without
    replacement. The interval is a bootstrap over the entity's mentions; for a single mention, its bounds equal the
    relevance.
    """
    _check(mentions, level, permutations)
    of_entity: dict[tuple[str, str], list[float]] = defaultdict(list)
    for mention in mentions:
        of_entity[mention.group, mention.entity].append(mention.relevance)
    tested = [key for key, values in of_entity.items() if len(values) >= least]
    pool = [mention.relevance for mention in mentions]
    ps = _drawn_ps(pool, [of_entity[key] for key in tested], seed, permutations)
    p_values = dict(zip(tested, zip(ps, benjamini_hochberg(ps), strict=True), strict=True))
    entities = []
    for (group, name), values in of_entity.items():
        p, corrected = p_values.get((group, name), (None, None))
        flagged = corrected is not None and corrected < level
        entities.append(Entity(name, group, len(values), interval_of(values, seed), p, corrected, flagged))
    return tuple(sorted(entities, key=lambda entity: (-entity.mean.mean, entity.name, entity.group)))


def naive_of(mentions: Sequence[Mention], names: Sequence[str]) -> tuple[Naive, ...]:
    """Return the predictions for texts that mention each group, compared with texts that mention only other groups.

    Every text counts once. A group without such other texts is left out.
    """
    _check(mentions)
    texts: dict[str, set[int]] = defaultdict(set)
    for mention in mentions:
        texts[mention.group].add(mention.text)
    positive = {mention.text for mention in mentions if mention.output > 0}
    labels = {mention.text: mention.label for mention in mentions if mention.label is not None}
    mentioned = _mentioned(texts, names)
    comparisons = []
    for name in mentioned:
        own = texts[name]
        other = set[int]().union(*(texts[group] for group in mentioned)) - own
        if not other:
            continue
        known = [labels[text] for text in own if text in labels]
        comparisons.append(
            Naive(
                name,
                texts=len(own),
                predicted=len(own & positive) / len(own),
                labelled=sum(known) / len(known) if known else None,
                other=len(other & positive) / len(other),
                p=fisher_p(len(own & positive), len(own - positive), len(other & positive), len(other - positive)),
            )
        )
    return tuple(comparisons)


def interval_of(values: Sequence[float], seed: int) -> Interval:
    """Return the mean of values with its 95 % bootstrap interval."""
    centre = mean(values)
    if min(values) == max(values):
        return Interval(centre, centre, centre)
    return _interval(centre, _drawn_means(np.array(values), np.random.default_rng(seed)))


def permutation_p(a: np.ndarray, b: np.ndarray, seed: int, permutations: int = PERMUTATIONS) -> float:
    """Return the two-sided p value of a permutation test of two groups.

    The statistic is Welch's t, the difference of the means divided by its standard error. The difference alone would
    flag groups with equal means too often if the smaller group also has the larger variance, as rare names have. If a
    group has one value, which has no variance, the statistic is the difference. All permutations are enumerated if
    there are at most `permutations`; otherwise as many are drawn at random, and the observed one is added, so that p is
    never 0.
    """
    small, large = sorted((np.asarray(a, dtype=float), np.asarray(b, dtype=float)), key=len)
    pooled = np.sort(np.concatenate([small, large]))  # in an order that does not depend on the groups
    middle = pooled.mean()
    scale = float(np.abs(pooled - middle).max()) or 1.0
    values, size, others = (pooled - middle) / scale, len(small), len(large)
    total, squares = values.sum(), np.square(values).sum()

    def apart(first: np.ndarray) -> np.ndarray:
        """Return the square of Welch's t for each row, which has the values of the smaller group."""
        sums = first.sum(1)
        rest = total - sums
        difference: np.ndarray = np.square(sums / size - rest / others)
        if size == 1:
            return difference
        own = np.square(first).sum(1)
        spread = (own - sums**2 / size) / (size - 1) / size
        spread += (squares - own - rest**2 / others) / (others - 1) / others
        flat = spread < _TIE
        without = np.where(difference < _TIE, 0.0, np.inf)  # two constant groups are equal, or infinitely far apart
        return np.where(flat, without, difference / np.where(flat, 1.0, spread))

    bound = apart((small[None] - middle) / scale) * (1 - _TIE) - _TIE
    if (ways := comb(len(values), size)) <= permutations:
        chosen = np.array(list(combinations(range(len(values)), size)))
        return int((apart(values[chosen]) >= bound).sum()) / ways
    rng = np.random.default_rng(seed)
    hits = sum(
        int((apart(rng.permuted(np.tile(values, (rows, 1)), axis=1)[:, :size]) >= bound).sum())
        for rows in _chunks(permutations, len(values))
    )
    return (1 + hits) / (1 + permutations)


def cliffs_delta(a: np.ndarray, b: np.ndarray) -> float:
    """Return Cliff's delta: over all pairs, the fraction with a > b minus the fraction with a < b."""
    b = np.sort(b)
    below = np.searchsorted(b, a, side="left").sum()
    above = (len(b) - np.searchsorted(b, a, side="right")).sum()
    return float((below - above) / (len(a) * len(b)))


def holm(ps: Sequence[float]) -> list[float]:
    """Return p values after Holm's correction, which controls the family-wise error rate."""
    order = np.argsort(ps, kind="stable")
    raised = np.maximum.accumulate(np.array(ps)[order] * np.arange(len(ps), 0, -1))
    return _unsorted(order, raised)


def benjamini_hochberg(ps: Sequence[float]) -> list[float]:
    """Return p values after the correction of Benjamini and Hochberg, which controls the false discovery rate."""
    order = np.argsort(ps, kind="stable")
    raised = np.array(ps)[order] * len(ps) / np.arange(1, len(ps) + 1)
    return _unsorted(order, np.minimum.accumulate(raised[::-1])[::-1])


def fisher_p(a: int, b: int, c: int, d: int) -> float:
    """Return the two-sided p value of Fisher's exact test of the table (a b; c d).

    It is the total probability of all tables with the same margins that are at most as likely as this one. Likelihoods
    are computed from logarithms of ratios of neighbours, so that large counts do not overflow.
    """
    row, other, column = a + b, c + d, a + c
    least, most = max(0, column - other), min(row, column)
    k = np.arange(least, most, dtype=float)
    quotients = np.log((row - k) * (column - k)) - np.log((k + 1) * (other - column + k + 1))
    logs = np.concatenate([[0.0], np.cumsum(quotients)])
    likelihoods = np.exp(logs - logs.max())
    at_most_as_likely = logs <= logs[a - least] + 1e-7  # tolerance for rounding
    return min(1.0, float(likelihoods[at_most_as_likely].sum() / likelihoods.sum()))


def _check(mentions: Sequence[Mention], level: float = 0.05, permutations: int = PERMUTATIONS) -> None:
    if not mentions:
        raise Error("There is no mention to test: no text contains a word of any group.")
    for mention in mentions:
        if not all(map(isfinite, (mention.relevance, mention.share, mention.output))):
            raise Error(f"The mention of {mention.entity!r} in text {mention.text} has nan or inf: {mention}.")
    if not 0 < level < 1:
        raise Error(f"level={level!r} is not a level of significance: choose one between 0 and 1, such as 0.05.")
    if permutations < 1:
        raise Error(f"permutations={permutations!r} is too small: give 1 or more.")


def _entity_means(mentions: Sequence[Mention]) -> dict[str, dict[str, float]]:
    """Return for each group the mean relevance of its entities, by name.

    `statistics.mean` is exact, so means do not depend on the order of numbers, and ties are preserved.
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for mention in mentions:
        values[mention.group][mention.entity].append(mention.relevance)
    return {group: {name: mean(own[name]) for name in sorted(own)} for group, own in values.items()}


def _mentioned(groups: Mapping[str, object], names: Sequence[str]) -> list[str]:
    mentioned = [name for name in dict.fromkeys(names) if name in groups]
    if not mentioned:
        raise Error(f"names={list(names)!r} are groups without a mention: choose from {sorted(groups)}.")
    return mentioned


def _difference(a: np.ndarray, b: np.ndarray, seed: int) -> Interval:
    """Return the difference of two means; its interval resamples the entities of each group independently."""
    rng = np.random.default_rng(seed)
    return _interval(mean(a.tolist()) - mean(b.tolist()), _drawn_means(a, rng) - _drawn_means(b, rng))


def _interval(centre: float, drawn: np.ndarray) -> Interval:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail]).tolist()
    return Interval(centre, low, high)


def _drawn_means(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n = len(values)
    return np.concatenate([values[rng.integers(n, size=(rows, n))].mean(1) for rows in _chunks(RESAMPLES, n)])


def _drawn_ps(pool: Sequence[float], entities: Sequence[Sequence[float]], seed: int, permutations: int) -> list[float]:
    """Return the p value of each entity: how often equally many mentions drawn from the pool have as extreme a mean.

    Every random order of mentions is used for all entities: its first n mentions are a draw of n.
    """
    if not entities:
        return []
    centre = mean(pool)
    values = np.array(pool) - centre
    counts = np.unique([len(own) for own in entities])
    rng = np.random.default_rng(seed)
    deviations = np.empty((permutations, len(counts)))
    for row in deviations:
        row[:] = np.abs(values[rng.choice(len(values), counts[-1], replace=False)].cumsum()[counts - 1] / counts)
    deviations = np.sort(deviations, axis=0)
    tie = _TIE * float(np.abs(values).max())
    ps = []
    for own in entities:
        column = deviations[:, np.searchsorted(counts, len(own))]
        hits = permutations - int(np.searchsorted(column, abs(mean(own) - centre) - tie))
        ps.append((1 + hits) / (1 + permutations))
    return ps


def _chunks(rows: int, width: int) -> Iterator[int]:
    """Yield numbers of rows to draw at a time, which add up to `rows`."""
    at_once = max(1, _AT_ONCE // width)
    for start in range(0, rows, at_once):
        yield min(at_once, rows - start)


def _unsorted(order: np.ndarray, values: np.ndarray) -> list[float]:
    """Return p values in their original order, at most 1; `values` are sorted by `order`."""
    original = np.empty(len(order))
    original[order] = np.minimum(values, 1)
    return [float(value) for value in original]
