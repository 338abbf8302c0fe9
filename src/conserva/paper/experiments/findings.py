"""What the evaluations of a result say about methods, named by the titles of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import Error
from ...evaluation.comparison import Interval
from ...evaluation.result import HIGHER_IS_BETTER, Evaluation, MethodResult
from .published import published
from .result import AnyResult, row_of
from .rows import OURS, Row, method_of


@dataclass(frozen=True)
class Verdict:
    """How the paper's own method compares with the paper's other methods: titles of the rows it beats, and so on."""

    beaten: tuple[str, ...]
    level: tuple[str, ...]
    ahead: tuple[str, ...]

    @property
    def best(self) -> bool:
        """Whether there are others and it beats them all, every paired 95 % interval excluding 0."""
        return bool(self.beaten) and not self.level and not self.ahead


@dataclass(frozen=True)
class TableColumn:
    """A column of the tables: a dataset, under a masking if the experiment has several."""

    result: AnyResult
    mask: str = ""

    @property
    def evaluation(self) -> Evaluation:
        return self.result.evaluations[self.mask]

    @property
    def title(self) -> str:
        return f"{short_name(self.result)} {self.mask}" if self.mask else self.result.title

    @property
    def names(self) -> list[str]:
        """The title of the dataset and, if there are several, the masking."""
        return [self.result.title, self.mask] if self.mask else [self.result.title]

    def row(self, title: str) -> MethodResult | None:
        """Return the result of a row, or None where its method does not apply."""
        return row_of(self.evaluation, method_of(self.result.rows, title))

    def mean(self, metric: str, title: str) -> float | None:
        """Return the mean of a row, or None where its method does not apply."""
        found = self.row(title)
        return None if found is None else float(getattr(found, metric).mean)

    def gain(self, metric: str, a: str, b: str) -> Interval | None:
        """Return by how much a is better than b on the same samples: positive is better in every metric."""
        if self.row(a) is None or self.row(b) is None:
            return None
        first, second = (method_of(self.result.rows, title) for title in (a, b))
        for pair in self.evaluation.pairs:
            if pair.metric == metric and {pair.a, pair.b} == {first, second}:
                if (pair.a == first) == HIGHER_IS_BETTER[metric]:
                    return Interval(pair.mean, pair.low, pair.high)
                return Interval(-pair.mean, -pair.high, -pair.low)
        raise Error(f"There is no difference of {first!r} and {second!r} in {metric!r}.")

    def best(self, metric: str) -> str | None:
        """Return the title of the paper's method with the best mean, or None where no method of the paper applies."""
        sign = 1 if HIGHER_IS_BETTER[metric] else -1
        means = {row.title: self.mean(metric, row.title) for row in self.result.rows if row.group == "paper"}
        known = {title: sign * mean for title, mean in means.items() if mean is not None}
        return max(known, key=lambda title: known[title], default=None)

    def verdict(self, metric: str) -> Verdict | None:
        """Compare the paper's own method with the paper's other methods; None where it does not apply."""
        if self.row(OURS) is None:
            return None
        gains = {
            row.title: gain
            for row in self.result.rows
            if row.group == "paper" and row.title != OURS and (gain := self.gain(metric, OURS, row.title)) is not None
        }
        return Verdict(
            tuple(title for title, gain in gains.items() if gain.low > 0),
            tuple(title for title, gain in gains.items() if gain.low <= 0 <= gain.high),
            tuple(title for title, gain in gains.items() if gain.high < 0),
        )

    def is_best(self, metric: str) -> bool:
        """Return whether the paper's own method beats the paper's other methods."""
        found = self.verdict(metric)
        return found is not None and found.best

    def share_of_random(self, metric: str, title: str) -> float | None:
        """Return a row's mean as a share of that of a random order."""
        one, floor = self.mean(metric, title), self.mean(metric, "Random")
        return None if one is None or not floor else one / floor

    def seeds_behind(self, metric: str, a: str, b: str) -> list[int] | None:
        """Return the seeds of the models on which a is not better than b; None where a mean is missing."""
        first, second = (method_of(self.result.rows, title) for title in (a, b))
        sign = 1 if HIGHER_IS_BETTER[metric] else -1
        found = {one.seed: one.means(metric, self.mask) for one in self.result.trained}
        if any(first not in means or second not in means for means in found.values()):
            return None
        return [seed for seed, means in found.items() if sign * (means[first] - means[second]) <= 0]


def columns(results: Sequence[AnyResult]) -> list[TableColumn]:
    """Return every dataset under every masking."""
    return [TableColumn(one, mask) for one in results for mask in one.evaluations]


def short_name(result: AnyResult) -> str:
    """Return a dataset's name for the head of a narrow column: BACE, BACE-random, MNIST."""
    first, dash, rest = result.dataset.partition("-")
    return f"{first.upper()}{dash}{rest}"


def definition_of(row: Row, rows: Sequence[Row]) -> Row:
    """Return the paper's method that a row of the group `released` is a variant of."""
    for one in rows:
        if one.group == "paper" and row.method.startswith(f"{one.method}:"):
            return one
    raise Error(f"{row.method!r} is not a variant of a method of the paper.")


def published_share(metric: str, dataset: str, method: str) -> float | None:
    """Return the authors' number as a share of their number for a random order."""
    one, floor = published(metric, dataset, method), published(metric, dataset, "random")
    return None if one is None or floor is None else one.value / floor.value
