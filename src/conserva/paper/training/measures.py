"""How good a classifier is: loss, accuracy and the area under the ROC curve."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import Error
from .samples import Samples


def measure(model: nn.Module, data: Samples, metric: str = "accuracy") -> dict[str, float]:
    """Return mean loss, accuracy and, if it is the metric, ROC-AUC; dropout is off."""
    model.eval()
    with torch.inference_mode():
        found = [(model(**inputs).logits.float(), labels) for inputs, labels in data.by_length(data.measured)]
    parts = zip(*found, strict=True)
    logits, labels = (torch.cat(part) for part in parts)
    loss = F.cross_entropy(logits, labels, reduction="sum")
    right = (logits.argmax(-1) == labels).sum()
    measures = {"loss": float(loss) / len(labels), "accuracy": float(right) / len(labels)}
    if metric == "roc_auc":
        measures["roc_auc"] = roc_auc((logits[:, 1] - logits[:, 0]).double(), labels)
    return measures


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Return how often a sample of class 1 has a higher score than one of class 0; equal scores count half."""
    positive = labels == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        raise Error(f"ROC-AUC needs samples of both classes, and has {ones} of class 1 and {zeros} of 0: take more.")
    _, places, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0) - (counts - 1) / 2  # equal scores share their mean rank
    above = float(ranks.double()[places][positive].sum()) - ones * (ones + 1) / 2
    return above / (ones * zeros)


def majority(labels: Sequence[int | str]) -> float:
    """Return the share of the most frequent class."""
    return max(map(labels.count, set(labels))) / len(labels)
