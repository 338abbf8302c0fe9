"""The words and numbers that the views of a trace share."""

from __future__ import annotations

from ..results.trace import Trace
from .wording import caption, number


def headline(trace: Trace) -> str:
    """Say what was explained, by which method, on which model."""
    return f"{caption(trace.explanation())}, layer by layer"


def reading(trace: Trace) -> str:
    """Say what the sums mean."""
    return (
        f"the sum of a row and what joins or is lost above it make {number(trace.output)}: "
        f"{number(trace.output - trace.sums[0])} above the inputs, {number(trace.output - trace.sums[-1])} above "
        f"{trace.layers[-1]}"
    )


def scale_of(trace: Trace) -> float:
    """Return the largest score, which the full colours stand for."""
    return max((abs(score) for row in trace.scores for score in row if score is not None), default=0.0) or 1.0
