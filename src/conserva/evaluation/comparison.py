"""Methods compared on the same samples: means with intervals, differences of pairs, and which method is the best."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from ..errors import Error
from ..results.schema import repeated, unknown


@dataclass(frozen=True)
class Interval:
    """A mean over samples, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def _flaws(self) -> Iterator[str]:
        if self.low > self.high:
            yield f"low is {self.low:g}, which is more than high, {self.high:g}"


@dataclass(frozen=True)
class Pair:
    """The difference of two methods, a minus b, on the same samples."""

    metric: str
    a: str
    b: str
    mean: float
    low: float
    high: float

    def _flaws(self) -> Iterator[str]:
        if self.low > self.high:
            yield f"low is {self.low:g}, which is more than high, {self.high:g}"


class Row(Protocol):
    """A method with its metrics: an `Interval` for each, as an attribute; None if it was not measured."""

    @property
    def method(self) -> str: ...

    @property
    def reference(self) -> bool: ...


Method = TypeVar("Method", bound=Row)


def is_random(method: str) -> bool:
    """Return whether a method is the random order, with any seed."""
    return method.partition(":")[0] == "random"


class Compared(Generic[Method]):
    """The base class of results with metrics of several methods on the same samples."""

    _better: ClassVar[Mapping[str, bool]]
    """Metric -> whether a higher value is better, in the order in which metrics are shown."""

    methods: tuple[Method, ...]
    pairs: tuple[Pair, ...]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that were measured, in the order in which they are shown."""
        return tuple(name for name in self._better if all(getattr(one, name) is not None for one in self.methods))

    def ranked(self, metric: str) -> list[Method]:
        """Return the methods from best to worst, without references and random orders."""
        if metric not in self.metrics:
            raise Error(f"metric={metric!r} was not measured: choose one of {', '.join(self.metrics)}.")
        candidates = [one for one in self.methods if not one.reference and not is_random(one.method)]
        return sorted(candidates, key=lambda one: _mean(one, metric), reverse=self._better[metric])

    def difference(self, metric: str, a: str, b: str) -> Interval | None:
        """Return the difference of two methods, a minus b, or None if they were not compared."""
        for pair in self.pairs:
            if (pair.metric, pair.a, pair.b) == (metric, a, b):
                return Interval(pair.mean, pair.low, pair.high)
            if (pair.metric, pair.a, pair.b) == (metric, b, a):
                return Interval(-pair.mean, -pair.high, -pair.low)
        return None

    def is_surely_better(self, metric: str, a: str, b: str) -> bool:
        """Return whether a is better than b: whether the interval of their difference excludes 0 on that side."""
        difference = self.difference(metric, a, b)
        if difference is None:
            return False
        return difference.low > 0 if self._better[metric] else difference.high < 0

    def possibly_best(self, metric: str) -> list[Method]:
        """Return the first method and those that it is not surely better than, from best to worst."""
        order = self.ranked(metric)
        return [one for one in order if not self.is_surely_better(metric, order[0].method, one.method)]

    def surely_best(self, metric: str) -> Method | None:
        """Return the method that is surely better than each other method and each random order; None without one."""
        order = self.ranked(metric)
        others = [one for one in self.methods if not one.reference and one is not order[0]] if order else []
        if others and all(self.is_surely_better(metric, order[0].method, other.method) for other in others):
            return order[0]
        return None

    def uncompared(self, *metrics: str) -> Iterator[str]:
        """Yield a message for each pair of methods without a difference in one of the metrics."""
        compared = {(pair.metric, frozenset((pair.a, pair.b))) for pair in self.pairs}
        for metric, (a, b) in itertools.product(metrics, itertools.combinations(self.methods, 2)):
            if (metric, frozenset((a.method, b.method))) not in compared:
                yield f"pairs lacks the difference of {a.method!r} and {b.method!r} in {metric!r}"

    def _flaws(self) -> Iterator[str]:
        names = [one.method for one in self.methods]
        yield from repeated("methods", names)
        for metric in self._better:
            lacking = [i for i, one in enumerate(self.methods) if getattr(one, metric) is None]
            if 0 < len(lacking) < len(names):
                yield f"methods[{lacking[0]}].{metric} is null, but other methods have it"
        for i, pair in enumerate(self.pairs):
            yield from unknown(f"pairs[{i}].metric", pair.metric, self.metrics)
            for side in ("a", "b"):
                yield from unknown(f"pairs[{i}].{side}", getattr(pair, side), names)


def _mean(one: Any, metric: str) -> float:
    return float(getattr(one, metric).mean)


def rows_of_methods(names: Sequence[str]) -> dict[str, list[str]]:
    """Return row of the table -> its methods: one per row, except that all seeds of `random` share a row."""
    rows: dict[str, list[str]] = {}
    seeds = [name for name in names if re.fullmatch(r"random(:seed=\d+)?", name)]
    for name in names:
        row = "random" if name in seeds and len(seeds) > 1 else name
        rows.setdefault(row, []).append(name)
    return rows
