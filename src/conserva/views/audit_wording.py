"""Texts of the page of audits: the summary, and the definitions of the terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..auditing.result import Audit
from .audit_terminal import agrees, closes, kinds, module_label, require_audits, samples, share, untraced
from .wording import number

MEANINGS = {
    "ledger": "output = inputs + positions + biases + gap. Relevance is propagated backward from the output to the "
    "inputs; a part of it belongs to position embeddings and biases. The gap is what was lost on the way. The ledger "
    "closes if the gap is 0 up to rounding.",
    "leak": "Relevance that enters an operation from the output's side and neither leaves it towards the inputs nor "
    "belongs to constants. Below 0, more leaves than enters: relevance is counted twice. The gap is the sum of all "
    "leaks.",
    "size": "The mean of |leak| over the samples: leaks of different samples with opposite signs do not cancel in it.",
    "constants": "Biases, positions, and everything else that the model adds and that is not an input.",
    "gi": "Gradient x Input: every operation is differentiated.",
    "ah, ln, ah+ln": "The rules of Ali et al. (2022): attention probabilities (ah) and the standard deviations of "
    "norms (ln) are treated as constants. Activations are differentiated, and leak.",
    "exact": "As ah+ln, but activations and products are treated as linear too: the ledger closes.",
    "Proposition 1": "Under the plain gradient, the relevance that leaves an attention head differs from the relevance "
    "that enters it by the covariance of its scores with its values. “Broke” is the measured difference.",
    "Proposition 2": "Under the plain gradient, only eps / (eps + variance) of the relevance that enters a norm leaves "
    "it, which is almost nothing.",
}


def summary(audits: Sequence[Audit]) -> list[str]:
    """Return a summary in plain words: which ledgers close, where relevance leaks, whether the propositions hold."""
    first = require_audits(audits)[0]
    start = (
        f"The output of {first.model} for “{first.target}” is {number(first.output)}, on average over "
        f"{samples(first)}. An explanation splits this number among the inputs; the ledger shows what belongs to "
        "biases and positions instead, and what is lost."
    )
    paragraphs = [" ".join(_rule_set(audit)) for audit in audits]
    return [start, *paragraphs, *[text for text in [" ".join(_theory(audits))] if text]]


def _rule_set(audit: Audit) -> Iterable[str]:
    """Yield sentences on the ledger of one rule set and its largest leaks."""
    worst, ledger = share(audit.relative_gap()), audit.ledger
    if closes(audit):
        yield (
            f"Under “{audit.rules}” the ledger closes: of {number(audit.output)}, the inputs get "
            f"{number(ledger.inputs)}, positions {number(ledger.positions)} and biases {number(ledger.biases)}. The "
            f"largest gap of a sample is {worst} of the largest output."
        )
        return
    way = "is lost" if ledger.gap >= 0 else "is counted twice"
    yield (
        f"Under “{audit.rules}” the ledger does not close: of {number(audit.output)}, the inputs get "
        f"{number(ledger.inputs)}, and {number(ledger.gap)} {way}. The largest gap of a sample is {worst} of the "
        "largest output."
    )
    by_kind, ranked = kinds(audit), audit.ranked()
    total = sum(size for _, size in by_kind.values())
    if not ranked or not total:
        return
    kind = max(by_kind, key=lambda kind: by_kind[kind][1])
    top = ranked[0]
    yield (
        f"By size, {share(by_kind[kind][1] / total)} of all leaks are in operations of the kind “{kind}”; the largest "
        f"single leak is in {module_label(top.module)} ({top.function}, {number(top.leak)})."
    )
    if untraced(audit):
        yield f"Of the gap, {number(untraced(audit))} is in no component: this audit is incomplete."


def _theory(audits: Sequence[Audit]) -> Iterable[str]:
    """Yield a sentence for each proposition that applies, on whether it holds."""
    parts: dict[str, tuple[str, Callable[[Audit], bool]]] = {
        "attention": ("Proposition 1 of Ali et al. (2022), on attention heads,", lambda audit: bool(audit.heads)),
        "norm": ("Proposition 2, on norms,", lambda audit: bool(audit.norms)),
    }
    for kind, (name, has) in parts.items():
        for audit in audits:
            holds = agrees(audit, kind) if has(audit) else None
            if holds is not None:
                yield f"{name} {'agrees' if holds else 'does not agree'} with the measurements under “{audit.rules}”."
