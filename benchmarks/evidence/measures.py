"""Measures of one explanation against the known evidence, and of its sums against the model under ablations.

All but the last take the scores of features (tokens or words) and whether each is evidence; the most is 1. Features
with the same score have no order.
"""

from __future__ import annotations

import math

import numpy as np

from conserva.evaluation.evidence_measures import average_precision, iou, pointing_game
from conserva.evaluation.removal_ranks import linear_datamodelling

NAMES = ("top1", "pointing", "iou", "ap", "recall")
RECALL_SHARE = 0.1


def measures(scores: np.ndarray, evidence: np.ndarray) -> dict[str, float]:
    """Return all measures by name; `pointing` is by the largest absolute score."""
    return {
        "top1": pointing_game(scores, evidence),
        "pointing": pointing_game(np.abs(scores), evidence),
        "iou": iou(scores, evidence),
        "ap": average_precision(scores, evidence),
        "recall": recall(scores, evidence),
    }


def recall(scores: np.ndarray, evidence: np.ndarray, share: float = RECALL_SHARE) -> float:
    """Return how much of the evidence is among a share of the features, those with the highest scores.

    The evidence among features with the same score counts as spread evenly over them.
    """
    _, group, sizes = np.unique(-scores, return_inverse=True, return_counts=True)
    hits = np.repeat(np.bincount(group, evidence.astype(float)) / sizes, sizes)
    return float(hits[: math.ceil(share * len(hits))].sum() / hits.sum())


def lds(scores: np.ndarray, kept: np.ndarray, outputs: np.ndarray) -> float:
    """Return the linear datamodelling score of one explanation; 0 where all outputs are equal.

    Parameters
    ----------
    scores
        One for each feature.
    kept
        Ablations x features: which features were kept.
    outputs
        The model's output under each ablation.
    """
    found = linear_datamodelling(scores, kept.astype(bool), np.ones(len(scores), dtype=bool), outputs)
    return 0.0 if found is None else found
