"""Texts shared by the views of a generation."""

from __future__ import annotations

from ..results.explanation import Sink
from ..results.generation import Generation, Step
from .wording import number

NO_LEDGER = "no ledger: this method does not decompose the output"
FEW = 5
"""Number of source tokens listed for a generated token."""


def headline(generation: Generation) -> str:
    """Return the title: what was explained, by which method, on which model."""
    many = len(generation.steps)
    what = f"{generation.score} of {'each of ' if many > 1 else ''}{many} generated token{'s' * (many != 1)}"
    return f"{what} · {generation.method} · {generation.model}"


def shown(token: str) -> str:
    """Return a token stripped for a list; blanks are made visible if it has nothing else."""
    return token.strip() or "␣" * len(token)


def strongest(generation: Generation, step: Step, many: int = FEW) -> list[tuple[str, float]]:
    """Return the tokens with the largest scores, without the first token, which is an attention sink."""
    scores = sorted(enumerate(step.scores[1:], start=1), key=lambda pair: -abs(pair[1]))
    return [(generation.features[i], score) for i, score in scores[:many] if score]


def first_token(generation: Generation, step: Step) -> str:
    """Return the score of the first token, and its share of the absolute relevance."""
    sink = Sink.of(0, generation.features, step.scores)
    return f"{number(sink.score)} ({sink.share:.0%})"
