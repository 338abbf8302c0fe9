"""Whether results agree with the columns of the paper's tables: which method is first, by how much, and in what order.

Compared are the rows of the paper's tables; differences are positive where the first method is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ...evaluation.comparison import Interval
from ...evaluation.result import HIGHER_IS_BETTER
from .findings import TableColumn, columns, published_share
from .published import other_column, published
from .result import AnyResult

AGREES, IN_ORDER, OPEN, DISAGREES = "agrees", "agrees weakly", "disagrees weakly", "disagrees"


@dataclass(frozen=True)
class Agreement:
    """A column of ours beside a column of the paper, in one metric. Methods are named by the titles of their rows."""

    column: TableColumn
    metric: str
    theirs: str
    """The dataset whose column in the paper it is."""
    first: str
    """The best method in the paper."""
    second: str
    lead: float
    """By how much the first is better than the second in the paper."""
    best: str
    """The best mean of ours."""
    rival: str
    """The best mean of ours among the methods that are not first in the paper."""
    gain: Interval
    """By how much the paper's first method is better than `rival` in ours, on the same samples."""
    verdict: str
    correlation: float | None
    """Kendall's tau-b between the two orders of the methods; None if one of them has ties only."""
    distance: float
    """The mean of |ours - theirs| over methods; of AU-MSE, as shares of that of Random."""

    @property
    def exchanged(self) -> bool:
        """Whether the paper's column is that of another dataset."""
        return self.theirs != self.column.result.dataset


def agreements(results: Sequence[AnyResult], metric: str) -> list[Agreement]:
    """Compare each column with the one printed for its dataset, and with the one that may be exchanged with it."""
    found = []
    for one in columns(results):
        own = one.result.dataset
        for theirs in (own, other_column(own)):
            if theirs is not None and (agreement := _agreement(one, metric, theirs)) is not None:
                found.append(agreement)
    return found


def _agreement(one: TableColumn, metric: str, theirs: str) -> Agreement | None:
    """Return the comparison, or None if fewer than two methods can be compared."""
    sign = 1 if HIGHER_IS_BETTER[metric] else -1
    rows = {row.title: row.method for row in one.result.rows if row.group == "paper" and one.row(row.title)}
    printed = {
        title: sign * known.value for title, method in rows.items() if (known := published(metric, theirs, method))
    }
    if len(printed) < 2:
        return None
    means = {title: sign * mean for title in rows if (mean := one.mean(metric, title)) is not None}
    first, second = sorted(printed, key=lambda title: -printed[title])[:2]
    others = [title for title in means if title != first]
    rival = max(others, key=lambda title: means[title])
    gains = {title: gain for title in others if (gain := one.gain(metric, first, title)) is not None}
    return Agreement(
        one,
        metric,
        theirs,
        first,
        second,
        printed[first] - printed[second],
        max(means, key=lambda title: means[title]),
        rival,
        gains[rival],
        _verdict(list(gains.values()), gains[rival]),
        kendall([(printed[title], means[title]) for title in printed]),
        _distance(one, metric, theirs, list(printed)),
    )


def _verdict(gains: Sequence[Interval], over_rival: Interval) -> str:
    if all(gain.low > 0 for gain in gains):
        return AGREES
    if any(gain.high < 0 for gain in gains):
        return DISAGREES
    return IN_ORDER if over_rival.mean > 0 else OPEN


def kendall(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Kendall's tau-b, which corrects for ties; None if all values of one side are equal."""
    signs = [(_sign(a[0] - b[0]), _sign(a[1] - b[1])) for a, b in combinations(pairs, 2)]
    untied = sum(x * x for x, _ in signs) * sum(y * y for _, y in signs)
    return sum(x * y for x, y in signs) / untied**0.5 if untied else None


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _distance(one: TableColumn, metric: str, theirs: str, titles: Sequence[str]) -> float:
    """Return the mean distance of the levels. Raw AU-MSE of two models cannot be compared, shares of Random's can."""
    distances = []
    for row in one.result.rows:
        if row.title not in titles:
            continue
        if metric == "auac":
            known = published(metric, theirs, row.method)
            pair = one.mean(metric, row.title), None if known is None else known.value
        elif row.title != "Random":
            pair = one.share_of_random(metric, row.title), published_share(metric, theirs, row.method)
        else:
            continue
        if pair[0] is not None and pair[1] is not None:
            distances.append(abs(pair[0] - pair[1]))
    return sum(distances) / len(distances) if distances else 0.0
