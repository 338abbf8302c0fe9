"""Texts shared by the views of a generation."""

from __future__ import annotations

from collections.abc import Sequence

from .._util.text import printable
from ..results.explanation import Sink
from ..results.generation import Generation, Step
from .wording import number

NO_LEDGER = "no ledger: this method does not decompose the output"
FEW = 5
"""Number of source tokens listed for a generated token."""

LONGEST = 60
"""The maximum number of characters of the generated text in the verdict."""

MENTIONED = 2
"""Number of source tokens in the verdict."""

PROMPT, GENERATED = "prompt", "generated text"

HINT = (
    "Choose generated tokens (underlined) to see which tokens they came from: click, tap, drag or use the arrow keys."
)

HELP = (
    "The page opens on the generated token with the clearest source: the one in whose relevance a single token of the "
    "prompt has the largest share, tokens of the template and the first token aside.",
    "Several tokens, chosen by dragging or with Shift, have the sum of their scores and ledgers. A token of the prompt "
    "shows what it contributed to. A second click, or Escape, lets go.",
    "The first token of a language model collects relevance that belongs to no word (an attention sink), so it is not "
    "coloured unless you ask for it. Tokens of a chat's template, such as the roles, are folded; a fold has the "
    "colour of their sum.",
)
"""How the page works, in paragraphs."""

ROLES = 2
"""Maximum number of words of a folded run of template tokens that its label names, such as the role of a turn."""


def headline(generation: Generation) -> str:
    """Return the title: what was explained, by which method, on which model."""
    many = len(generation.steps)
    what = f"{generation.score} of {'each of ' if many > 1 else ''}{many} generated token{'s' * (many != 1)}"
    return f"{what} · {generation.method} · {generation.model}"


def verdict(generation: Generation) -> str:
    """Return what was generated, and the strongest sources of the token on which a page opens."""
    written = printable(" ".join(generation.written.replace("↵", " ").split()))
    text = written if len(written) <= LONGEST else f"{written[:LONGEST].rstrip()}…"
    if not generation.steps:
        return f"The generated text is “{text}”."
    aside = _aside(generation)
    step = generation.steps[opening(generation)]
    scores = [(i, score) for i, score in enumerate(step.scores) if i not in aside and score]
    sources = [
        f"“{printable(shown(generation.features[i]))}” ({number(score)})"
        for i, score in sorted(scores, key=lambda pair: -abs(pair[1]))[:MENTIONED]
    ]
    start = f"The generated text is “{text}”; its token “{printable(shown(step.token))}”"
    return f"{start} comes mostly from {' and '.join(sources)}." if sources else f"{start} comes from no token."


def shown(token: str) -> str:
    """Return a token stripped for a list; blanks are made visible if it has nothing else."""
    return token.strip() or "␣" * len(token)


def sink_of(generation: Generation) -> int:
    """Return the index of the token that is not coloured by default: the attention sink, or else the first token."""
    return generation.sink or 0


def chip_label(tokens: Sequence[str]) -> str:
    """Return the label of a folded run of template tokens: the words in it if they are few, such as "user"."""
    words = [word for word in map(str.strip, tokens) if word.isalpha()]
    return " ".join(words) if 0 < len(words) <= ROLES else f"{len(tokens)} template tokens"


def opening(generation: Generation) -> int:
    """Return the step on which a page opens: the one whose strongest token of the prompt has the largest share.

    Tokens of the template and the first token are left out, as sources and in the sum of which the share is taken.
    """
    aside = _aside(generation)

    def clearness(step: int) -> float:
        sizes = {i: abs(score) for i, score in enumerate(generation.steps[step].scores) if i not in aside}
        prompt = max((size for i, size in sizes.items() if i < generation.start), default=0.0)
        return prompt / (sum(sizes.values()) or 1.0)

    steps = [i for i in range(len(generation.steps)) if generation.start + i not in aside]
    return max(steps, key=clearness, default=0)


def _aside(generation: Generation) -> set[int]:
    """Return the indices of the tokens of the template, and of the first token."""
    return {i for i, special in enumerate(generation.special) if special} | {sink_of(generation)}


def strongest(generation: Generation, step: Step, many: int = FEW) -> list[tuple[str, float]]:
    """Return the tokens with the largest scores, without the first token, which is an attention sink."""
    scores = sorted(enumerate(step.scores[1:], start=1), key=lambda pair: -abs(pair[1]))
    return [(generation.features[i], score) for i, score in scores[:many] if score]


def first_token(generation: Generation, step: Step) -> str:
    """Return the score of the first token, and its share of the absolute relevance."""
    sink = Sink.of(0, generation.features, step.scores)
    return f"{number(sink.score)} ({sink.share:.0%})"
