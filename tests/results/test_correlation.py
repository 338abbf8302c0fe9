"""Rank correlations of methods, compared with SciPy's."""

from __future__ import annotations

import random

import pytest

from conserva import Comparison
from conserva.results.correlation import rank_correlations
from made_up_explanations import explanation

NAMES = [f"w{i}" for i in range(12)]


def scored(scores: list[float], method: str = "exact", **changes: object) -> object:
    return explanation(NAMES[: len(scores)], scores=tuple(scores), method=method, ledger=None, **changes)


def test_they_are_spearman_s_with_ties() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = random.Random(0)
    for _ in range(50):
        rows = [[float(rng.randint(-3, 3)) for _ in NAMES] for _ in range(3)]
        found = rank_correlations([scored(row) for row in rows])  # type: ignore[misc]
        for i in range(3):
            for j in range(3):
                # The first feature is special, and does not count.
                assert found[i][j] == pytest.approx(stats.spearmanr(rows[i][1:], rows[j][1:]).statistic, abs=1e-12)


def test_where_they_are_not_defined_there_is_none() -> None:
    assert rank_correlations([scored([1, 2, 3]), scored([5, 0, 0])]) == ((1.0, None), (None, None))
    assert rank_correlations([scored([1, 2, 3]), scored([1, 2, 3, 4])])[0] == (1.0, None)
    assert rank_correlations([scored([1.0])]) == ((None,),)
    assert rank_correlations([]) == ()


def test_a_comparison_has_them() -> None:
    found = Comparison((scored([0, 1, 2, 3], "gi"), scored([0, 3, 2, 1], "ig")))  # type: ignore[arg-type]
    assert found.correlations() == ((1.0, -1.0), (-1.0, 1.0))
