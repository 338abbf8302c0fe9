"""Evaluation of the faithfulness of explanations to a model."""

from .comparison import Interval, Pair
from .evidence import Evidence, EvidenceRow, measure_evidence
from .evidence_measures import average_precision, iou, pointing_game, top1
from .result import Conservation, Curve, Evaluation, MethodResult

__all__ = [
    "Conservation",
    "Curve",
    "Evaluation",
    "Evidence",
    "EvidenceRow",
    "Interval",
    "MethodResult",
    "Pair",
    "average_precision",
    "iou",
    "measure_evidence",
    "pointing_game",
    "top1",
]
