"""The random subsets of the linear datamodelling score, and the rank correlations, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conserva
from conserva.evaluation.protocol import PROTOCOLS
from conserva.evaluation.removal_ranks import linear_datamodelling, subsets, tau
from conserva.evaluation.samples import Sample
from reviews import REVIEWS
from slow_ranks import slow_spearman, slow_tau


def test_subsets_depend_on_the_sample_alone() -> None:
    task = conserva.load()
    protocol = PROTOCOLS["default"]
    texts = [REVIEWS[2], REVIEWS[2], REVIEWS[2].replace("not", "so")]
    one, same, other = (Sample(i, task.encode(text), None) for i, text in enumerate(texts))
    kept = subsets(one, protocol, 2000)
    assert (kept == subsets(same, protocol, 2000)).all()
    assert (kept[:5] == subsets(one, protocol, 5)).all()
    assert kept.shape == (2000, len(one.encoded))
    fixed = np.array(one.encoded.special)
    assert kept[:, fixed].all()
    assert kept[:, ~fixed].mean(0) == pytest.approx(0.5, abs=0.06)
    assert np.abs(np.corrcoef(kept[:, ~fixed].T) - np.eye((~fixed).sum())).max() < 0.12
    others = subsets(other, protocol, 2000)
    assert others.shape == kept.shape
    assert 0.4 < (others == kept)[:, ~fixed].mean() < 0.6
    short = Sample(0, task.encode("a joy"), None)
    assert subsets(short, protocol, 9).shape == (0, 4)  # two tokens and two special ones
    assert len(subsets(short, PROTOCOLS["paper"], 9)) == 9


@settings(deadline=None, max_examples=60)
@given(st.integers(3, 8), st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_both_correlations_are_those_of_a_loop(features: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(-2, 3, features) * 0.1
    maskable, drops = rng.random(features) < 0.8, rng.integers(-1, 2, features).astype(float)
    kept = (rng.random((count, features)) < 0.5) | ~maskable
    outputs = rng.integers(0, 4, count).astype(float)
    sums = [sum(round(scores[i] * 10) for i in range(features) if maskable[i] and row[i]) for row in kept]
    expected = slow_spearman(outputs.tolist(), sums) if np.ptp(outputs) else None
    assert linear_datamodelling(scores, kept, maskable, outputs) == (
        expected if expected is None else pytest.approx(expected)
    )
    effects = drops[maskable].tolist()
    expected = slow_tau(scores[maskable].tolist(), effects) if len(set(effects)) > 1 else None
    assert tau(scores, drops, maskable, 3.0) == (expected if expected is None else pytest.approx(expected))


def test_outputs_that_differ_by_rounding_have_no_value() -> None:
    kept, scores = np.eye(4, dtype=bool), np.arange(4.0)
    every = np.ones(4, dtype=bool)
    noise = 1e-6 * np.arange(4)
    assert linear_datamodelling(scores, kept, every, 5 + noise) is None
    assert linear_datamodelling(scores, kept, every, 5 + 1000 * noise) == pytest.approx(1)
    assert linear_datamodelling(scores, kept[:0], every, noise[:0]) is None
    assert tau(scores, noise, every, 5.0) is None
    assert tau(scores, 1000 * noise, every, 5.0) == pytest.approx(1)
    assert tau(scores, noise, ~every, 5.0) is None
