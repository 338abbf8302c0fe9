"""Cells of the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...evaluation.comparison import Interval
from ...views.evaluation_wording import interval, short, without_zero
from ...views.markdown import listed, stacked

METRICS = ("auac", "au_mse")
MEASURES = {"accuracy": "accuracy", "roc_auc": "ROC-AUC"}
NONE = "-"
"""What stands where there is no number."""


def number(value: float | None) -> str:
    """Return a number as the paper writes it, as .123."""
    return without_zero(short(value))


def size(value: float | None) -> str:
    """Return a number, or its power of ten if it is very small."""
    return f"{value:.0e}" if value is not None and 0 < value < 0.0005 else number(value)


def mean_and_interval(one: Interval | None, strong: bool) -> str:
    """Return a mean with its interval below; bold if `strong`."""
    if one is None:
        return NONE
    mean, _, limits = without_zero(interval(one)).partition(" ")
    return stacked(f"**{mean}**" if strong else mean, limits)


def difference(one: Interval | None) -> str:
    """Return a difference with its interval below; bold if the interval excludes 0."""
    return mean_and_interval(one, one is not None and (one.low > 0 or one.high < 0))


def percent(value: float | None) -> str:
    """Return a share in percent."""
    return NONE if value is None else f"{value:.1%}"


def seeds_of(seeds: Sequence[int]) -> str:
    """Return seeds in words."""
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {listed([str(seed) for seed in seeds])}"


def setting(value: Any) -> str:
    """Return the value of a setting."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
