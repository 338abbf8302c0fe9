"""Measures of one explanation against the known evidence, and of its sums against the model under ablations.

All but the last take the scores of features (tokens or words) and whether each is evidence; the most is 1. Features
with the same score have no order: the evidence among them counts as spread evenly over them.
"""

from __future__ import annotations

import math

import numpy as np

NAMES = ("top1", "pointing", "iou", "ap", "recall")
RECALL_SHARE = 0.1


def measures(scores: np.ndarray, evidence: np.ndarray) -> dict[str, float]:
    """Return all measures by name."""
    return {
        "top1": top1(scores, evidence),
        "pointing": top1(np.abs(scores), evidence),
        "iou": iou(scores, evidence),
        "ap": average_precision(scores, evidence),
        "recall": recall(scores, evidence),
    }


def top1(scores: np.ndarray, evidence: np.ndarray) -> float:
    """Return whether the feature with the highest score is evidence; of absolute scores, this is the pointing game."""
    return float(_ordered(scores, evidence)[0])


def iou(scores: np.ndarray, evidence: np.ndarray) -> float:
    """Return intersection over union of the evidence and as many features with the highest scores."""
    size = int(evidence.sum())
    shared = float(_ordered(scores, evidence)[:size].sum())
    return shared / (2 * size - shared)


def average_precision(scores: np.ndarray, evidence: np.ndarray) -> float:
    """Return the mean, over the evidence, of the share of evidence among the features down to each."""
    hits = _ordered(scores, evidence)
    precisions = hits.cumsum() / np.arange(1, len(hits) + 1)
    return float((precisions * hits).sum() / hits.sum())


def recall(scores: np.ndarray, evidence: np.ndarray, share: float = RECALL_SHARE) -> float:
    """Return how much of the evidence is among a share of the features, those with the highest scores."""
    hits = _ordered(scores, evidence)
    return float(hits[: math.ceil(share * len(hits))].sum() / hits.sum())


def lds(scores: np.ndarray, kept: np.ndarray, outputs: np.ndarray) -> float:
    """Return Spearman's correlation between outputs under ablations and the sums of the scores of what was kept.

    This is the linear datamodeling score. Where all sums or all outputs are equal, it is 0.

    Parameters
    ----------
    scores
        One for each feature.
    kept
        Ablations x features: which features were kept.
    outputs
        The model's output under each ablation.
    """
    a, b = (ranks - ranks.mean() for ranks in (_ranks(kept @ scores), _ranks(outputs)))
    norm = math.sqrt(float((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm else 0.0


def _ordered(scores: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """Return how much evidence stands at each place of the order from the highest score to the lowest."""
    _, group, sizes = np.unique(-scores, return_inverse=True, return_counts=True)
    shares = np.bincount(group, evidence.astype(float)) / sizes
    found: np.ndarray = np.repeat(shares, sizes)
    return found


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value, that of equal ones being their mean."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    found: np.ndarray = (sizes.cumsum() - (sizes - 1) / 2)[group]
    return found
