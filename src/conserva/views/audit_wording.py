"""What the page of audits says in words: the summary, and what its numbers mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..auditing.result import Audit
from .audit_terminal import agrees, closes, kinds, named, samples, share, some, untraced
from .wording import number

MEANINGS = {
    "the books": "output = inputs + positions + biases + gap. Relevance starts as the output and is handed back "
    "through the model to its inputs; positions and biases take a part. The gap is what got lost on the way.",
    "leak": "What enters an operation from the output's side and neither leaves it towards the inputs nor goes to "
    "constants. Below 0 more leaves than enters: relevance is counted twice. All leaks together are the gap.",
    "size": "The leak of each sample without its sign, averaged: where leaks of different samples cancel, this does "
    "not.",
    "constants": "Biases, positions, and everything else that the model adds and that is not an input.",
    "gi": "Gradient x Input: every operation is differentiated.",
    "ah, ln, ah+ln": "The rules of Ali et al. (2022): attention probabilities (ah) and the scales of norms (ln) are "
    "taken as constants. Activations are differentiated, and leak.",
    "exact": "The same, and activations and products are read as linear too: the books close.",
    "Proposition 1": "Under the plain gradient a head hands on more, or less, than it gets: by the covariance of its "
    "scores with its values. “Broke” is what was measured.",
    "Proposition 2": "Under the plain gradient a norm lets only eps / (eps + variance) of its relevance through, which "
    "is next to nothing.",
}


def summary(audits: Sequence[Audit]) -> list[str]:
    """Say in plain words where the books close, where they leak, and whether the propositions hold."""
    first = some(audits)[0]
    start = (
        f"{first.model} gives “{first.target}” {number(first.output)}, on average over {samples(first)}. An "
        "explanation splits this number among the inputs; what biases and positions take, and what gets lost, "
        "is on the books."
    )
    told = [" ".join(_told(one)) for one in audits]
    return [start, *told, *[text for text in [" ".join(_theory(audits))] if text]]


def _told(one: Audit) -> Iterable[str]:
    """Say what the books of one rule set come to, and where most of it leaks."""
    worst = share(one.relative_gap())
    if closes(one):
        yield (
            f"Under “{one.rules}” the books close: of {number(one.output)} the inputs get {number(one.inputs)}, "
            f"positions {number(one.positions)}, biases {number(one.biases)}, and no sample is off by more than "
            f"{worst} of the largest output."
        )
        return
    way = "gets lost on the way" if one.gap >= 0 else "is counted twice"
    yield (
        f"Under “{one.rules}” they do not close: of {number(one.output)} the inputs get {number(one.inputs)}, and "
        f"{number(one.gap)} {way}; the worst sample is off by {worst} of the largest output."
    )
    found, ranked = kinds(one), one.ranked()
    total = sum(size for _, size in found.values())
    if not ranked or not total:
        return
    kind = max(found, key=lambda kind: found[kind][1])
    top = ranked[0]
    yield (
        f"By size, {share(found[kind][1] / total)} of all leaks are in operations of the kind “{kind}”; the largest "
        f"single one is {named(top.module)} ({top.function}, leak {number(top.leak)})."
    )
    if untraced(one):
        yield f"Of the gap, {number(untraced(one))} is in no component: this audit has missed something."


def _theory(audits: Sequence[Audit]) -> Iterable[str]:
    """Say whether the propositions hold where they apply."""
    parts: dict[str, tuple[str, Callable[[Audit], bool]]] = {
        "attention": ("Proposition 1 of Ali et al. (2022), on attention heads,", lambda one: bool(one.heads)),
        "norm": ("Proposition 2, on norms,", lambda one: bool(one.norms)),
    }
    for kind, (name, has) in parts.items():
        for one in audits:
            found = agrees(one, kind) if has(one) else None
            if found is not None:
                yield f"{name} {'agrees' if found else 'does not agree'} with what was measured under “{one.rules}”."
