"""Evaluation of the faithfulness of explanations to a model."""

from .result import Conservation, Curve, Evaluation, Interval, MethodResult, Pair

__all__ = ["Conservation", "Curve", "Evaluation", "Interval", "MethodResult", "Pair"]
