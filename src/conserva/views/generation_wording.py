"""The words and numbers that the views of a generation share."""

from __future__ import annotations

from ..results.explanation import Sink
from ..results.generation import Generation, Step
from .wording import number

NO_LEDGER = "no ledger: this method does not split the score"
FEW = 5
"""How many sources of a token are named."""


def headline(generation: Generation) -> str:
    """Say what was explained, by which method, on which model."""
    many = len(generation.steps)
    what = f"{generation.score} of {'each of ' if many > 1 else ''}{many} written token{'s' * (many != 1)}"
    return f"{what} · {generation.method} · {generation.model}"


def shown(token: str) -> str:
    """Return a token as a name in a list: with its blanks to be seen where it has nothing else."""
    return token.strip() or "␣" * len(token)


def strongest(generation: Generation, step: Step, many: int = FEW) -> list[tuple[str, float]]:
    """Return the strongest sources of a token; the first token, which most of them look at, is told of by itself."""
    scores = sorted(enumerate(step.scores[1:], start=1), key=lambda one: -abs(one[1]))
    return [(generation.features[i], score) for i, score in scores[:many] if score]


def first_token(generation: Generation, step: Step) -> str:
    """Say what the first token gave, and how much of all relevance that is."""
    sink = Sink.of(0, generation.features, step.scores)
    return f"{number(sink.score)} ({sink.share:.0%})"
