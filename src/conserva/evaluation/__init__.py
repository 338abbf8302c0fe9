"""Evaluation of the faithfulness of explanations to a model."""

from .comparison import Interval, Pair
from .result import Conservation, Curve, Evaluation, MethodResult

__all__ = [
    "Conservation",
    "Curve",
    "Evaluation",
    "Interval",
    "MethodResult",
    "Pair",
]
