"""Faithfulness: does an explanation tell the truth about the model?"""

from .result import Conservation, Curve, Evaluation, Interval, MethodResult, Pair

__all__ = ["Conservation", "Curve", "Evaluation", "Interval", "MethodResult", "Pair"]
