"""What a result says, read from paired intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import Error
from ..faithfulness.evaluation import HIGHER_IS_BETTER, Evaluation, Interval, MethodResult
from .plan import OURS, ROWS, Row
from .published import published
from .result import TextResult, Trained


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


def verdict(evaluation: Evaluation, metric: str, method: str = OURS, group: str = "paper") -> Verdict:
    """Compare a method with the others of a group on the same samples."""
    beaten: list[str] = []
    level: list[str] = []
    ahead: list[str] = []
    for row in ROWS:
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


def best_of(evaluation: Evaluation, metric: str, group: str = "paper") -> str | None:
    """Return the method of a group with the best mean, or None where the group has no result."""
    means = {one.method: getattr(one, metric).mean for one in evaluation.methods}
    known = [row.method for row in ROWS if row.group == group and row.method in means]
    sign = 1 if HIGHER_IS_BETTER[metric] else -1
    return max(known, key=lambda method: sign * means[method], default=None)


def definition_of(row: Row) -> Row:
    """Return the paper's method of which a row is what the released code computes under its name."""
    for one in ROWS:
        if one.group == "paper" and row.method.startswith(f"{one.method}:"):
            return one
    raise Error(f"{row.method!r} is no variant of a method of the paper.")


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
    found = []
    for one in trained:
        means = getattr(one, metric)
        if a not in means or b not in means:
            return None
        gain = (means[a] - means[b]) * (1 if HIGHER_IS_BETTER[metric] else -1)
        found += [one.seed] if gain <= 0 else []
    return found


@dataclass(frozen=True)
class Range:
    """The smallest and the largest of some values."""

    low: float
    high: float


def range_of(results: Sequence[TextResult], value: Callable[[TextResult], float | None]) -> Range:
    """Return the range of a number over datasets; those that have none are left out."""
    found = [number for one in results if (number := value(one)) is not None]
    return Range(min(found), max(found)) if found else Range(math.nan, math.nan)


def spread(values: Sequence[float]) -> float:
    """Return half of the distance between the largest and the smallest value."""
    return (max(values) - min(values)) / 2
