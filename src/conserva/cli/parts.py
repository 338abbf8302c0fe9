"""What of a result is shown: the options --words, --hide-special, --hide-sink and --numbers."""

from __future__ import annotations

import argparse

from ..results.explanation import Explanation
from ..results.explanations import Comparison
from ..results.result import Result


def displayed_parts(explanation: Explanation, given: argparse.Namespace) -> Explanation:
    """Apply --hide-sink, --words and --hide-special."""
    explanation = explanation.without_sink() if given.hide_sink else explanation
    explanation = explanation.merged() if given.words else explanation
    return explanation.visible() if given.hide_special else explanation


def print_result(result: Result, given: argparse.Namespace) -> None:
    """Print a result to standard output, explanations with --numbers."""
    from ..views.terminal import show, show_comparison

    if isinstance(result, Explanation):
        show([result], numbers=given.numbers)
    elif isinstance(result, Comparison):
        show_comparison(result, numbers=given.numbers)
    else:
        result.show()
