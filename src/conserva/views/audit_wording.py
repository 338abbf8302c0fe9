"""Texts, table rows and definitions shared by the views of audits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..auditing.result import Audit, Component, Head, Norm
from ..engine.coverage import CoverageEntry
from ..engine.ledger import ENTRIES
from ..errors import Error
from .wording import CLOSED, OF_LEDGER, lost_or_twice, number

KINDS = ("attention", "norm", "activation", "product", "linear", "other")
NUMBERS = ("entering", "leaving", "constants", "leak", "size")

LEAKS = "█ lost, ░ counted twice; size: |leak|, mean over samples, added up over operations"
BROKEN = "entering = leaving + constants + leak; ranked by size: |leak|, mean over samples"
HEAD = "broke: how much more leaves than enters; covariance: the same, predicted by Proposition 1"
RESIDUAL = (
    "A branch is added to its trunk: z = a + b. cancellation: (|a| + |b|) / |z|; amplification: (|Ra| + |Rb|) / |Rz|, "
    "how far the absolute relevance of both parts exceeds that of their sum. Both are 1 if nothing cancels. The "
    "largest of each layer, from the output down"
)
NORM = "entering: relevance of its output; leaving: of its input; predicted: by Proposition 2; under freeze: all"

TWICE = "of the sign opposite to the output's: counted twice"
"""What leaks are that are not lost."""

GUIDE = (
    "The ledger splits the output: inputs + positions + biases + gap. A leak is relevance that an operation loses on "
    f"the way from the output to the inputs ({TWICE}); the gap is the sum of all leaks."
)
"""What a reader needs for the verdict."""

MEANINGS = {
    "ledger": "output = inputs + positions + biases + gap. Relevance is propagated backward from the output to the "
    "inputs; a part of it belongs to position embeddings and biases. The gap is what was lost on the way. The ledger "
    "closes if the gap is 0 up to rounding. Its share is |gap| / (|inputs| + |positions| + |biases| + |gap|).",
    "leak": "Relevance that enters an operation from the output's side and neither leaves it towards the inputs nor "
    "belongs to constants. With the sign opposite to the output's, more leaves than enters: relevance is counted "
    "twice. The gap is the sum of all leaks.",
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


# Texts and rows of tables


def headline(audit: Audit) -> str:
    """Return the title: model, target, rule set, number of samples."""
    return f"{subject(audit)} · rules {audit.rules} · {samples(audit)}"


def subject(audit: Audit) -> str:
    """Return model and target."""
    return f"{audit.model} · {audit.target}"


def listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def samples(audit: Audit) -> str:
    """Return the number of samples with a noun."""
    return "1 sample" if audit.samples == 1 else f"{audit.samples} samples"


def ledger_line(audit: Audit) -> str:
    """Return the ledger in one line."""
    parts = [f"{name} {number(getattr(audit.ledger, name))}" for name in ENTRIES]
    return f"{' '.join(parts)} = {number(audit.output)}"


def share(value: float) -> str:
    """Return a share in per cent, or in scientific notation if that would be 0.0%."""
    return f"{value:.1%}" if value >= 0.0005 or value == 0 else f"{value:.0e}"


def direction(audit: Audit) -> int:
    """Return the sign of the output: leaks of this sign are lost, those of the other are counted twice."""
    return -1 if audit.output < 0 else 1


def closes(audit: Audit) -> bool:
    """Return whether the ledger closes for every sample, up to rounding."""
    return audit.gap_share() <= CLOSED


def closing_line(audit: Audit) -> str:
    """Return a sentence on whether the ledger closes, with the largest gap of a sample."""
    start = "The ledger closes" if closes(audit) else "The ledger does not close"
    return f"{start}: the largest gap of a sample is {share(audit.gap_share())} of {OF_LEDGER}."


def verdict(audits: Sequence[Audit]) -> str:
    """Return one sentence: under which rule sets the explanations add up to the output, and what the others lose."""
    first = require_audits(audits)[0]
    adding = [f"“{audit.rules}”" for audit in audits if closes(audit)]
    failing = [
        f"“{audit.rules}” ({share(audit.gap_share())}: {lost_or_twice(audit.ledger)})"
        for audit in audits
        if not closes(audit)
    ]
    what = f"explanations of {first.model}"
    if not failing:
        return f"Under {listed(adding)}, {what} add up to the output: inputs, positions and biases get all of it."
    amount = f"in brackets: the largest gap of a sample as a share of {OF_LEDGER}"
    if not adding:
        return f"Under {listed(failing)}, {what} do not add up to the output ({amount})."
    return f"Under {listed(adding)}, {what} add up to the output; under {listed(failing)} they do not ({amount})."


def above_rounding(audit: Audit) -> list[Component]:
    """Return the components that break conservation by more than rounding errors, the largest leaks first."""
    scale = max((abs(output) for output in audit.outputs), default=0.0) or abs(audit.output)
    return [component for component in audit.ranked() if component.size > CLOSED * scale]


def unsigned(value: float) -> str:
    """Return a number without a plus sign."""
    return number(value).lstrip("+")


def shortened(text: str, room: int) -> str:
    """Shorten text in the middle: the ends of a module's name are the most informative."""
    if len(text) <= room:
        return text
    tail = room // 2
    return f"{text[: room - tail - 1]}…{text[len(text) - tail :]}"


def operation(component: Component | CoverageEntry) -> str:
    """Return function, kind and, if there is one, rule of an operation."""
    return " · ".join(part for part in (component.function, component.kind, component.rule) if part)


def module_label(module: str) -> str:
    """Return a module's name, or a label for the model itself, whose name is empty."""
    return module or "(the model itself)"


def amounts(component: Component) -> list[str]:
    """Return the values of the columns `NUMBERS`."""
    return [*(number(getattr(component, name)) for name in NUMBERS[:-1]), unsigned(component.size)]


def kinds(audit: Audit) -> dict[str, tuple[float, float]]:
    """Return kind of operation -> sum of the leaks, sum of their sizes."""
    leaks = audit.kinds()
    order = [kind for kind in KINDS if kind in leaks] + [kind for kind in leaks if kind not in KINDS]
    return {
        kind: (leaks[kind], sum(component.size for component in audit.components if component.kind == kind))
        for kind in order
    }


def untraced(audit: Audit) -> float:
    """Return the part of the gap that no component explains: 0 up to rounding if the audit is complete."""
    rest = audit.ledger.gap - sum(audit.kinds().values())
    return rest if abs(rest) > CLOSED * max(abs(audit.output), abs(audit.ledger.gap)) else 0.0


def heads(audit: Audit) -> list[Head]:
    """Return the heads, sorted by how much they break conservation, as measured or predicted."""
    return sorted(audit.heads, key=lambda head: -max(abs(head.broke), abs(head.covariance)))


def norms(audit: Audit) -> list[Norm]:
    """Return the norms, sorted by the relevance that enters them."""
    return sorted(audit.norms, key=lambda norm: -abs(norm.entering))


def head_error(audit: Audit) -> float:
    """Return the largest deviation of a head from Proposition 1."""
    return max((abs(head.broke - head.covariance) for head in audit.heads), default=0.0)


def norm_error(audit: Audit) -> float:
    """Return the largest deviation of a norm from Proposition 2."""
    return max((abs(norm.leaving - norm.predicted) for norm in audit.norms), default=0.0)


def agrees(audit: Audit, kind: str) -> bool | None:
    """Return whether a proposition holds up to rounding; None if another rule than the gradient was used."""
    if rules_used(audit, kind) - {"gradient"}:
        return None
    if kind == "attention":
        scale = max((max(abs(part.broke), abs(part.entering)) for part in audit.heads), default=0.0)
        return head_error(audit) <= CLOSED * scale
    return norm_error(audit) <= CLOSED * max((abs(part.entering) for part in audit.norms), default=0.0)


def rules_used(audit: Audit, kind: str) -> set[str]:
    """Return the rules that were used for operations of a kind."""
    entries: Sequence[Component | CoverageEntry] = (*audit.coverage, *audit.components)
    return {entry.rule for entry in entries if entry.kind == kind and entry.rule}


def head_note(audit: Audit) -> str:
    """Return a note on how the heads compare with Proposition 1."""
    return _agreement(audit, "attention", head_error(audit), len(audit.heads), "head")


def norm_note(audit: Audit) -> str:
    """Return a note on how the norms compare with Proposition 2."""
    return _agreement(audit, "norm", norm_error(audit), len(audit.norms), "norm")


def _agreement(audit: Audit, kind: str, error: float, count: int, word: str) -> str:
    holds = agrees(audit, kind)
    over = f"over {'the one' if count == 1 else f'all {count}'} {word}{'s' * (count > 1)}"
    if holds is None:
        rules = ", ".join(sorted(rules_used(audit, kind) - {"gradient"}))
        return (
            f"The proposition is about the plain gradient; here the rule was {rules}. "
            f"Largest difference {over}: {unsigned(error)}."
        )
    return f"It {'holds' if holds else 'does NOT hold'}: largest disagreement {over}: {unsigned(error)}."


def coverage(audit: Audit) -> list[tuple[CoverageEntry, int, int]]:
    """Return each combination of kind, function and rule, with its numbers of calls and of modules."""
    by_operation: dict[str, list[CoverageEntry]] = {}
    order = {kind: i for i, kind in enumerate(KINDS)}
    for entry in sorted(audit.coverage, key=lambda entry: order.get(entry.kind, len(order))):
        by_operation.setdefault(operation(entry), []).append(entry)
    return [
        (entries[0], sum(entry.times for entry in entries), len({entry.module for entry in entries}))
        for entries in by_operation.values()
    ]


def require_audits(audits: Sequence[Audit]) -> Sequence[Audit]:
    """Return the audits; raise `Error` if there are none."""
    if not audits:
        raise Error("Got no audit to show: give at least one.")
    return audits


def ledger_rows(audits: Sequence[Audit]) -> tuple[list[str], list[list[str]]]:
    """Return the names of the ledger's entries and of their sum, and a row of cells for each, one cell per rule set."""
    rows = [[number(getattr(audit.ledger, name)) for audit in audits] for name in ENTRIES]
    return [*ENTRIES, "= output"], [*rows, [number(audit.output) for audit in audits]]


def leaks(audits: Sequence[Audit]) -> tuple[list[str], list[list[str]]]:
    """Return the kinds of operations, the largest leaks first, and a row of cells for each: one per rule set."""
    by_audit = [kinds(audit) for audit in audits]
    seen = dict.fromkeys(kind for by_kind in by_audit for kind in by_kind)
    order = sorted(seen, key=lambda kind: -max(abs(by_kind.get(kind, (0.0,))[0]) for by_kind in by_audit))
    return order, [[number(by_kind[kind][0]) if kind in by_kind else "-" for by_kind in by_audit] for kind in order]


# The summary


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
    worst, ledger = share(audit.gap_share()), audit.ledger
    if closes(audit):
        yield (
            f"Under “{audit.rules}” the ledger closes: of {number(audit.output)}, the inputs get "
            f"{number(ledger.inputs)}, positions {number(ledger.positions)} and biases {number(ledger.biases)}. The "
            f"largest gap of a sample is {worst} of {OF_LEDGER}."
        )
        return
    yield (
        f"Under “{audit.rules}” the ledger does not close: of {number(audit.output)}, the inputs get "
        f"{number(ledger.inputs)}, and {number(ledger.gap)} is left as the gap: {lost_or_twice(ledger)}. The largest "
        f"gap of a sample is {worst} of {OF_LEDGER}."
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
