"""Rank correlations of scores with the effects of removal: the linear datamodelling score, and tau with leave-one-out.

Where the model's outputs are equal, up to rounding, both are None, for all methods alike. Where the scores of a method
predict nothing, because all are equal, its correlation is 0.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from .._util.kendall import kendall_tau
from .._util.spearman import spearman
from .protocol import Protocol
from .samples import Sample

FEWEST = 3
"""The minimum number of features for the linear datamodelling score."""

NOISE = 1e-5
"""The differences of outputs, relative to the largest, that are attributed to rounding."""


def subsets(sample: Sample, protocol: Protocol, count: int) -> np.ndarray:
    """Return which features random subsets keep, subsets x features, each feature with probability 1/2.

    They depend on the content of the sample alone: neither on other samples nor on methods. Features that are never
    removed are kept. There are no subsets if fewer than three features can be removed.
    """
    maskable = sample.maskable(protocol)
    if maskable.sum() < FEWEST:
        return np.ones((0, len(maskable)), dtype=bool)
    seed = hashlib.sha256(sample.encoded.key.encode("utf-8", "surrogatepass")).digest()
    drawn = np.random.default_rng(list(seed)).random((count, len(maskable))) < 0.5
    kept: np.ndarray = drawn | ~maskable
    return kept


def linear_datamodelling(
    scores: np.ndarray, kept: np.ndarray, maskable: np.ndarray, outputs: np.ndarray
) -> float | None:
    """Return the rank correlation of outputs with the sums of the scores of the features that each subset keeps.

    Parameters
    ----------
    scores
        The score of each feature.
    kept
        Which features each subset keeps, subsets x features.
    maskable
        Which features can be removed: only their scores are summed, the others are in every subset.
    outputs
        The explained logit for each subset.
    """
    if not len(outputs) or not _vary(outputs):
        return None
    # rounded once, so that the sums of equal scores are equal in any order
    sums = [math.fsum(scores[row]) for row in kept & maskable]
    return _or_zero(spearman(sums, outputs.tolist()))


def tau(scores: np.ndarray, drops: np.ndarray, maskable: np.ndarray, output: float) -> float | None:
    """Return Kendall's tau-b of scores and of the drops of an output when each feature is removed alone."""
    effects = drops[maskable]
    if not _vary(output - effects):
        return None
    return _or_zero(kendall_tau(scores[maskable], effects))


def _vary(outputs: np.ndarray) -> bool:
    return bool(len(outputs)) and float(np.ptp(outputs)) > NOISE * float(np.abs(outputs).max())


def _or_zero(correlation: float) -> float:
    return 0.0 if math.isnan(correlation) else correlation
