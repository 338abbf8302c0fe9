"""Texts shared by the views of a trace."""

from __future__ import annotations

from ..results.trace import Trace
from .wording import caption, number

LOOK_FOR = (
    "Read from the last layer at the top down to the inputs: where the colour moves from one token to another, that "
    "layer carried information between them."
)
"""What to look for in a trace."""


def headline(trace: Trace) -> str:
    """Return the title: what was explained, by which method, on which model."""
    return f"{caption(trace.explanation())}, layer by layer"


def sums_note(trace: Trace) -> str:
    """Return a note on how the sums of the layers relate to the output."""
    return (
        f"the sum of a layer differs from the output {number(trace.output)} by the relevance of constants above it and "
        f"by what is lost there: {number(trace.output - trace.sums[0])} for the inputs, "
        f"{number(trace.output - trace.sums[-1])} for {trace.layers[-1]}"
    )


def scale_of(trace: Trace) -> float:
    """Return the largest |score|, which is shown in the full colours."""
    return max((abs(score) for row in trace.scores for score in row if score is not None), default=0.0) or 1.0
