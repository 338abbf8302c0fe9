"""What a result says, read from paired intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...errors import Error
from ...evaluation.result import HIGHER_IS_BETTER, Evaluation, Interval, MethodResult
from .plan import OURS, ROWS, Row
from .published import published
from .result import Trained

One = TypeVar("One")


@dataclass(frozen=True)
class Verdict:
    """How one method stands among others on a metric: which it beats, is level with, is behind; titles of rows."""

    metric: str
    beaten: tuple[str, ...]
    level: tuple[str, ...]
    ahead: tuple[str, ...]

    @property
    def best(self) -> bool:
        """Whether there are others and it beats them all, every paired 95 % interval leaving out 0."""
        return bool(self.beaten) and not self.level and not self.ahead


def verdict(
    evaluation: Evaluation, metric: str, method: str = OURS, group: str = "paper", rows: Sequence[Row] = ROWS
) -> Verdict:
    """Compare a method with the others of a group on the same samples."""
    beaten: list[str] = []
    level: list[str] = []
    ahead: list[str] = []
    for row in rows:
        if row.group != group or row.method == method or row_of(evaluation, row.method) is None:
            continue
        gain = advantage(evaluation, metric, method, row.method)
        (beaten if gain.low > 0 else ahead if gain.high < 0 else level).append(row.title)
    return Verdict(metric, tuple(beaten), tuple(level), tuple(ahead))


def advantage(evaluation: Evaluation, metric: str, a: str, b: str) -> Interval:
    """Return by how much a is better than b, in the metric's own sense: positive is better."""
    for pair in evaluation.pairs:
        if pair.metric == metric and {pair.a, pair.b} == {a, b}:
            one = Interval(pair.mean, pair.low, pair.high)
            forward = (pair.a == a) == HIGHER_IS_BETTER[metric]
            return one if forward else Interval(-one.mean, -one.high, -one.low)
    raise Error(f"There is no difference of {a!r} and {b!r} in {metric!r}.")


def row_of(evaluation: Evaluation, method: str) -> MethodResult | None:
    """Return a method's result, or None where it does not apply."""
    return next((one for one in evaluation.methods if one.method == method), None)


def means_of(evaluation: Evaluation, metric: str, rows: Sequence[Row]) -> dict[str, float]:
    """Return the means of the methods of some rows, those that there are."""
    found = {one.method: float(getattr(one, metric).mean) for one in evaluation.methods}
    return {row.method: found[row.method] for row in rows if row.method in found}


def best_of(evaluation: Evaluation, metric: str, group: str = "paper", rows: Sequence[Row] = ROWS) -> str | None:
    """Return the method of a group with the best mean, or None where the group has no result."""
    means = means_of(evaluation, metric, [row for row in rows if row.group == group])
    sign = 1 if HIGHER_IS_BETTER[metric] else -1
    return max(means, key=lambda method: sign * means[method], default=None)


def definition_of(row: Row) -> Row:
    """Return the paper's method of which a row is what the released code computes under its name."""
    for one in ROWS:
        if one.group == "paper" and row.method.startswith(f"{one.method}:"):
            return one
    raise Error(f"{row.method!r} is not a variant of a method of the paper.")


def share_of_random(evaluation: Evaluation, metric: str, method: str) -> float | None:
    """Return a method's mean as a share of that of a random order, or None where one of the two is missing."""
    one, floor = row_of(evaluation, method), row_of(evaluation, "random")
    if one is None or floor is None or not getattr(floor, metric).mean:
        return None
    return float(getattr(one, metric).mean / getattr(floor, metric).mean)


def published_share(metric: str, dataset: str, method: str) -> float | None:
    """Return the same share of the authors' numbers."""
    one, floor = published(metric, dataset, method), published(metric, dataset, "random")
    return None if one is None or floor is None else one.value / floor.value


def not_ahead(trained: Sequence[Trained], metric: str, a: str, b: str) -> list[int] | None:
    """Return the seeds of the classifiers on which a is not better than b; None where one of the two is missing."""
    return behind({one.seed: getattr(one, metric) for one in trained}, metric, a, b)


def behind(means: Mapping[int, Mapping[str, float]], metric: str, a: str, b: str) -> list[int] | None:
    """Return the same of each seed's means, method by method."""
    found = []
    for seed, one in means.items():
        if a not in one or b not in one:
            return None
        gain = (one[a] - one[b]) * (1 if HIGHER_IS_BETTER[metric] else -1)
        found += [seed] if gain <= 0 else []
    return found


def rank_correlation(a: Mapping[str, float], b: Mapping[str, float]) -> float | None:
    """Return Spearman's correlation over the methods that both have; None where that is none.

    It is 1 where both put the methods in the same order, -1 where in the opposite one. Equal values share their ranks.
    """
    both = [method for method in a if method in b]
    first, second = (_ranks([of[method] for method in both]) for of in (a, b))
    if not both or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    middle = (len(both) + 1) / 2
    products = sum((x - middle) * (y - middle) for x, y in zip(first, second, strict=True))
    sizes = math.prod(sum((x - middle) ** 2 for x in ranks) for ranks in (first, second))
    return products / math.sqrt(sizes)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, from 1; equal ones share the middle of theirs."""
    return [sum(x < value for x in values) + (values.count(value) + 1) / 2 for value in values]


@dataclass(frozen=True)
class Range:
    """The smallest and the largest of some values."""

    low: float
    high: float


def range_of(results: Sequence[One], value: Callable[[One], float | None]) -> Range:
    """Return the range of a number over datasets; those that have none are left out."""
    found = [number for one in results if (number := value(one)) is not None]
    return Range(min(found), max(found)) if found else Range(math.nan, math.nan)


def spread(values: Sequence[float]) -> float:
    """Return half of the distance between the largest and the smallest value."""
    return (max(values) - min(values)) / 2
