"""Statistics of mentions: groups with intervals, differences between groups, entities that stand out.

Mentions of one name are not independent of each other, and names, not mentions, belong to groups. So groups are
compared over entities: each counts once, with the mean of its mentions. A difference that a few often-mentioned names
make is then no difference between groups. For the same reason intervals of groups draw entities, not mentions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import comb, isfinite
from statistics import mean

import numpy as np

from ..errors import Error
from ..evaluation.result import Interval
from ..evaluation.statistics import LEVEL, RESAMPLES
from .result import Difference, Entity, Group, Mention, Naive

PERMUTATIONS = 10_000
LEAST = 5
"""Entities with fewer mentions are ranked but not tested."""

_AT_ONCE = 1_000_000
"""How many numbers are drawn at a time."""
_TIE = 1e-9
"""Sums of the same numbers in another order differ by rounding: so close, relative to the largest, counts as equal."""


def groups_of(mentions: Sequence[Mention], names: Sequence[str], seed: int) -> tuple[Group, ...]:
    """Return the groups that were met, in the order of `names`; one that no text mentions is left out.

    The interval draws entities with replacement; a group with a single entity has none, its bounds are the mean.
    """
    _check(mentions)
    means = _entity_means(mentions)
    found = []
    for name in _met(means, names):
        own = [one for one in mentions if one.group == name]
        found.append(
            Group(
                name,
                entities=len(means[name]),
                mentions=len(own),
                texts=len({one.text for one in own}),
                mean=interval_of(list(means[name].values()), seed),
                per_mention=mean(one.relevance for one in own),
                share=mean(one.share for one in own),
            )
        )
    return tuple(found)


def differences_of(
    mentions: Sequence[Mention], names: Sequence[str], level: float, seed: int, permutations: int = PERMUTATIONS
) -> tuple[Difference, ...]:
    """Return every pair of groups that were met, compared in the order of `names`; none where there is but one.

    The test asks whether names are exchangeable between two groups, and takes the names as given: a group of one
    among ten cannot have a p value below 0.1, however often it is mentioned. A single entity on either side adds
    nothing to the width of the interval, which is then too narrow; p is not.

    It is exact for names that are exchangeable, and nearly so for groups of equal means and unequal spread, since
    Welch's t is what is compared.

    It speaks of names in the sentences they stand in. A word has more relevance where the model is undecided,
    whichever word it is: groups that stand in different kinds of sentences can be flagged by a model that does not
    tell their names apart. Swaps, which keep the sentence, show whether it is the names.
    """
    _check(mentions, level, permutations)
    means = {group: np.array(list(own.values())) for group, own in _entity_means(mentions).items()}
    pairs = list(combinations(_met(means, names), 2))
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
    """Return every entity that was met, from the most positive mean to the most negative.

    Those with at least `least` mentions are tested against as many mentions drawn from all, without replacement. The
    interval draws the entity's mentions with replacement; of a single mention it is that mention's relevance.
    """
    _check(mentions, level, permutations)
    of_entity: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in mentions:
        of_entity[one.group, one.entity].append(one.relevance)
    tested = [key for key, values in of_entity.items() if len(values) >= least]
    ps = _drawn_ps([one.relevance for one in mentions], [of_entity[key] for key in tested], seed, permutations)
    found = dict(zip(tested, zip(ps, benjamini_hochberg(ps), strict=True), strict=True))
    entities = []
    for (group, name), values in of_entity.items():
        p, corrected = found.get((group, name), (None, None))
        flagged = corrected is not None and corrected < level
        entities.append(Entity(name, group, len(values), interval_of(values, seed), p, corrected, flagged))
    return tuple(sorted(entities, key=lambda one: (-one.mean.mean, one.name, one.group)))


def naive_of(mentions: Sequence[Mention], names: Sequence[str]) -> tuple[Naive, ...]:
    """Return what predictions alone say of each group, beside texts that mention another of `names` and not it.

    A text counts once, however many names it mentions. A group that every text mentions has nothing to be compared
    with and is left out; so is the only one.
    """
    _check(mentions)
    texts: dict[str, set[int]] = defaultdict(set)
    for one in mentions:
        texts[one.group].add(one.text)
    positive = {one.text for one in mentions if one.output > 0}
    labels = {one.text: one.label for one in mentions if one.label is not None}
    met = _met(texts, names)
    found = []
    for name in met:
        own = texts[name]
        other = set[int]().union(*(texts[group] for group in met)) - own
        if not other:
            continue
        known = [labels[text] for text in own if text in labels]
        found.append(
            Naive(
                name,
                texts=len(own),
                predicted=len(own & positive) / len(own),
                labelled=sum(known) / len(known) if known else None,
                other=len(other & positive) / len(other),
                p=fisher_p(len(own & positive), len(own - positive), len(other & positive), len(other - positive)),
            )
        )
    return tuple(found)


def interval_of(values: Sequence[float], seed: int) -> Interval:
    """Return the mean of values with its 95 % bootstrap interval, which is the mean alone where all are equal."""
    centre = mean(values)
    if min(values) == max(values):
        return Interval(centre, centre, centre)
    return _interval(centre, _drawn_means(np.array(values), np.random.default_rng(seed)))


def permutation_p(a: np.ndarray, b: np.ndarray, seed: int, permutations: int = PERMUTATIONS) -> float:
    """Return how often two groups drawn from the same values are as far apart as these, on either side.

    How far is Welch's t: the difference of the means over its standard error. The difference alone would flag groups of
    equal means too often where the smaller one is also the more scattered, as rare names are. A group of one value has
    no spread: there it is the difference. All ways to draw the groups are gone through if there are no more than
    `permutations`. Otherwise so many are drawn at random, and the groups themselves count as one more: p is never 0.
    """
    small, large = sorted((np.asarray(a, dtype=float), np.asarray(b, dtype=float)), key=len)
    pooled = np.sort(np.concatenate([small, large]))  # in an order that tells nothing of the groups
    middle = pooled.mean()
    scale = float(np.abs(pooled - middle).max()) or 1.0
    values, size, others = (pooled - middle) / scale, len(small), len(large)
    total, squares = values.sum(), np.square(values).sum()

    def apart(first: np.ndarray) -> np.ndarray:
        """Return the square of Welch's t for each row, the values of the smaller group."""
        sums = first.sum(1)
        rest = total - sums
        difference: np.ndarray = np.square(sums / size - rest / others)
        if size == 1:
            return difference
        own = np.square(first).sum(1)
        spread = (own - sums**2 / size) / (size - 1) / size
        spread += (squares - own - rest**2 / others) / (others - 1) / others
        flat = spread < _TIE
        without = np.where(difference < _TIE, 0.0, np.inf)  # two constants: equal, or apart beyond all measure
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
    """Return how much more often a value of a is above one of b than below it, of all pairs."""
    b = np.sort(b)
    below = np.searchsorted(b, a, side="left").sum()
    above = (len(b) - np.searchsorted(b, a, side="right")).sum()
    return float((below - above) / (len(a) * len(b)))


def holm(ps: Sequence[float]) -> list[float]:
    """Return p values such that, of all below a level, the chance of a single false one is at most the level."""
    order = np.argsort(ps, kind="stable")
    raised = np.maximum.accumulate(np.array(ps)[order] * np.arange(len(ps), 0, -1))
    return _put_back(order, raised)


def benjamini_hochberg(ps: Sequence[float]) -> list[float]:
    """Return p values such that, of all below a level, the expected share of false ones is at most the level."""
    order = np.argsort(ps, kind="stable")
    raised = np.array(ps)[order] * len(ps) / np.arange(1, len(ps) + 1)
    return _put_back(order, np.minimum.accumulate(raised[::-1])[::-1])


def fisher_p(a: int, b: int, c: int, d: int) -> float:
    """Return the p value of Fisher's exact test of the table (a b; c d), two sides.

    It is the probability of all tables with the same margins that are at most as likely as this one. The likelihoods
    come from the quotients of neighbours, as logarithms, so that thousands of texts cause no overflow.
    """
    row, other, column = a + b, c + d, a + c
    least, most = max(0, column - other), min(row, column)
    k = np.arange(least, most, dtype=float)
    quotients = np.log((row - k) * (column - k)) - np.log((k + 1) * (other - column + k + 1))
    logs = np.concatenate([[0.0], np.cumsum(quotients)])
    likelihoods = np.exp(logs - logs.max())
    no_likelier = logs <= logs[a - least] + 1e-7  # equal ones differ by rounding
    return min(1.0, float(likelihoods[no_likelier].sum() / likelihoods.sum()))


def _check(mentions: Sequence[Mention], level: float = 0.05, permutations: int = PERMUTATIONS) -> None:
    if not mentions:
        raise Error("There is no mention to test: no text holds a word of any group.")
    for one in mentions:
        if not all(map(isfinite, (one.relevance, one.share, one.output))):
            raise Error(f"The mention of {one.entity!r} in text {one.text} has nan or inf: {one}.")
    if not 0 < level < 1:
        raise Error(f"level={level!r} is not a level of significance: choose one between 0 and 1, as 0.05.")
    if permutations < 1:
        raise Error(f"permutations={permutations!r} leaves nothing to compare with: choose at least 1.")


def _entity_means(mentions: Sequence[Mention]) -> dict[str, dict[str, float]]:
    """Return for each group its entities' mean relevance, by name.

    `statistics.mean` is exact: means of the same numbers in another order are equal, and ties stay ties.
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in mentions:
        values[one.group][one.entity].append(one.relevance)
    return {group: {name: mean(own[name]) for name in sorted(own)} for group, own in values.items()}


def _met(groups: Mapping[str, object], names: Sequence[str]) -> list[str]:
    found = [name for name in dict.fromkeys(names) if name in groups]
    if not found:
        raise Error(
            f"names={list(names)!r} are groups without a single mention: those that texts mention are {sorted(groups)}."
        )
    return found


def _difference(a: np.ndarray, b: np.ndarray, seed: int) -> Interval:
    """Return the difference of two means; its interval draws each group's entities on their own."""
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
    """Return for each entity how often as many mentions drawn from the pool have a mean as far from the pool's.

    One random order of mentions serves every entity: its first n are a draw of n.
    """
    if not entities:
        return []
    centre = mean(pool)
    values = np.array(pool) - centre
    counts = np.unique([len(own) for own in entities])
    rng = np.random.default_rng(seed)
    far = np.empty((permutations, len(counts)))
    for row in far:
        row[:] = np.abs(values[rng.choice(len(values), counts[-1], replace=False)].cumsum()[counts - 1] / counts)
    far = np.sort(far, axis=0)
    tie = _TIE * float(np.abs(values).max())
    found = []
    for own in entities:
        column = far[:, np.searchsorted(counts, len(own))]
        hits = permutations - int(np.searchsorted(column, abs(mean(own) - centre) - tie))
        found.append((1 + hits) / (1 + permutations))
    return found


def _chunks(rows: int, width: int) -> Iterator[int]:
    """Yield how many rows to draw at a time."""
    at_once = max(1, _AT_ONCE // width)
    for start in range(0, rows, at_once):
        yield min(at_once, rows - start)


def _put_back(order: np.ndarray, values: np.ndarray) -> list[float]:
    found = np.empty(len(order))
    found[order] = np.minimum(values, 1)
    return [float(one) for one in found]
