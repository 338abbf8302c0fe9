"""The words and numbers that every view uses alike."""

from __future__ import annotations

from ..engine.ledger import ENTRIES
from ..results.explanation import Explanation


def number(value: float) -> str:
    """Return a signed number with at most three digits behind the point."""
    return f"{value:+.3f}" if abs(value) >= 0.0005 or value == 0 else f"{value:+.0e}"


def caption(explanation: Explanation) -> str:
    """Say what was explained, by which method, on which model."""
    return f"{_score(explanation)} · {explanation.method} · {explanation.model}"


def outcome(explanation: Explanation) -> str:
    """Say what was explained on which model, where several methods explain it."""
    return f"{_score(explanation)} · {explanation.model}"


def _score(explanation: Explanation) -> str:
    sure = "" if explanation.probability is None else f", probability {explanation.probability:.1%}"
    return f"{explanation.target}: {number(explanation.output)}{sure}"


def ledger_line(explanation: Explanation) -> str:
    """Return the books in one line."""
    if explanation.ledger is None:
        return "no ledger: this method does not split the score"
    parts = [f"{name} {number(getattr(explanation.ledger, name))}" for name in ENTRIES]
    return f"{' '.join(parts)} = {number(explanation.output)}"


def sink_line(explanation: Explanation) -> str:
    """Say how much of the relevance a language model's first token holds, and whether it is in the picture."""
    sink = explanation.sink
    if sink is None:
        return ""
    where = "" if sink.place is not None else "; it is left out of the picture, not of the books"
    return f"the first token '{sink.token}' holds {number(sink.score)}, {sink.share:.0%} of all relevance{where}"


def scale_line(scale: float) -> str:
    """Say what the colours stand for."""
    return f"colours from {number(-scale)} (blue, against) to {number(scale)} (red, for)"
