"""Texts and number formats shared by all views."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..engine.ledger import ENTRIES, Ledger
from ..engine.rules import DEFAULT, RULE_SETS
from ..results.explanation import Explanation

HIDDEN = 1e-3
"""Scores that are not shown are told if their sum, relative to the largest score, is above this: not for rounding."""

LARGE_GAP, LARGE_PART = 0.05, 0.25
"""A gap is large if `Ledger.gap_share` is above the first, or if it is above this part of the output."""

CLOSED = 1e-3
"""Up to this `gap_share` a ledger closes: the gap is rounding error."""

CANCELLATION = 5
"""Entries cancel if the sum of their absolute values is above this multiple of the output."""

OF_LEDGER = "the sum of its ledger's absolute values"
"""The whole of which `Ledger.gap_share` is a share."""

LARGE = 1e7
"""Numbers from here on are written in scientific notation, so that they fit into columns."""

MOST_CLASSES = 3
"""The number of classes in `classes_line`."""


def number(value: float) -> str:
    """Return a signed number with three decimals; in scientific notation if they would all be 0, or if it is large."""
    if abs(value) >= LARGE:
        return f"{value:+.3e}"
    return f"{value:+.3f}" if abs(value) >= 0.0005 or value == 0 else f"{value:+.0e}"


def caption(explanation: Explanation) -> str:
    """Return the title: what was explained, by which method, on which model."""
    return f"{_score(explanation)} · {explanation.method} · {explanation.model}"


def outcome(explanation: Explanation) -> str:
    """Return the title of a comparison of methods: what was explained, on which model."""
    return f"{_score(explanation)} · {explanation.model}"


def _score(explanation: Explanation) -> str:
    sure = "" if explanation.probability is None else f", probability {explanation.probability:.1%}"
    return f"{explanation.target}: {number(explanation.output)}{sure}"


def ledger_line(explanation: Explanation) -> str:
    """Return the ledger in one line."""
    if explanation.ledger is None:
        return "no ledger: this method does not decompose the output"
    parts = [f"{name} {number(getattr(explanation.ledger, name))}" for name in ENTRIES]
    return f"{' '.join(parts)} = {number(explanation.output)}"


def ledger_note(explanation: Explanation) -> str:
    """Return what a reader must know before reading scores as shares of the output; empty if there is nothing."""
    return gap_note(explanation) or cancellation_note(explanation) or constants_note(explanation)


def ledger_notes(explained: Sequence[Explanation]) -> list[str]:
    """Return the same for a comparison: on all large gaps, and on the first ledger whose entries cancel."""
    cancelling = [note for one in explained if not gap_note(one) and (note := cancellation_note(one))]
    return [*gap_notes(explained), *cancelling[:1]]


def gap_note(explanation: Explanation) -> str:
    """Return what a large gap means and how to close it; an empty string for small gaps and without a ledger."""
    return "".join(gap_notes([explanation]))


def gap_notes(explained: Sequence[Explanation]) -> list[str]:
    """Return what the large gaps of several methods mean, in one note for those of the same cause."""
    causes: dict[str, list[Explanation]] = {}
    for one in explained:
        if one.ledger is not None and has_large_gap(one.ledger):
            is_rounding = one.method.partition(":")[0] == DEFAULT
            cause = one.provenance.get("dtype", "low precision") if is_rounding else ""
            causes.setdefault(cause, []).append(one)
    return [_gap_note(dtype, those) for dtype, those in causes.items()]


def has_large_gap(ledger: Ledger[float]) -> bool:
    """Return whether the gap is so large that scores are no shares of the output."""
    share = ledger.gap_share
    return share > LARGE_GAP or (share > CLOSED and abs(ledger.gap) > LARGE_PART * abs(ledger.output))


def _gap_note(dtype: str, explained: Sequence[Explanation]) -> str:
    first, *others = (
        f"{one.method} attributes {number(one.output - one.ledger.gap)}" for one in explained if one.ledger
    )
    listed = " and ".join([", ".join([first, *others[:-1]]), *others[-1:]])
    found = f"Large gap: of the output {number(explained[0].output)}, {listed}"
    if dtype:
        return f"{found}. These are rounding errors of {dtype}: load the model in float32, and the ledger closes."
    whose = "its" if len(explained) == 1 else "these"
    advice = f"Do not read {whose} scores as shares of the output. Under {DEFAULT} the gap is rounding error."
    if any(one.method.partition(":")[0] == "ig" for one in explained):
        advice += " That of ig is smaller with more steps."
    audited = ",".join(one.method for one in explained if one.method in RULE_SETS)
    if audited:
        second = " --with TEXT" if len(explained[0].sections) == 2 else ""
        advice += f" To see where it arises: conserva audit {explained[0].model} --rules {audited} --text TEXT{second}."
    return f"{found}. {advice}"


def cancellation_note(explanation: Explanation) -> str:
    """Return a note if the output is a small difference of large entries of the ledger; empty otherwise."""
    ledger = explanation.ledger
    if ledger is None:
        return ""
    entries = {name: float(getattr(ledger, name)) for name in ENTRIES}
    if sum(map(abs, entries.values())) <= CANCELLATION * abs(explanation.output):
        return ""
    ranked = sorted(entries, key=lambda name: entries[name])
    most, least = (f"{name} {number(entries[name])}" for name in (ranked[-1], ranked[0]))
    return (
        f"By {explanation.method}, large entries cancel: {most} and {least}, for an output of "
        f"{number(explanation.output)}. Compare the scores with each other, not with the output."
    )


def lost_or_twice(ledger: Ledger[float]) -> str:
    """Return what a gap means: one with the sign of the output is missing elsewhere, one with the other is too much."""
    return "relevance is lost" if ledger.gap * ledger.output > 0 else "relevance is counted twice"


def sink_line(explanation: Explanation) -> str:
    """Return a note on the share of the relevance that a language model's first token has; empty without a sink."""
    sink = explanation.sink
    if sink is None:
        return ""
    where = "" if sink.place is not None else "; it is not shown, but counted in the ledger"
    return f"the first token '{sink.token}' has {number(sink.score)}, {sink.share:.0%} of the absolute relevance{where}"


def constants_note(explanation: Explanation) -> str:
    """Return a note if the constants outweigh the inputs; empty otherwise."""
    ledger = explanation.ledger
    if ledger is None or abs(ledger.positions + ledger.biases) <= abs(ledger.inputs):
        return ""
    note = "Positions and biases, constants of the model, outweigh the inputs in this output."
    others = [one.label for one in explanation.classes if one.label != explanation.target]
    if explanation.probability is None or explanation.sink is not None or not others:
        return note
    contrast = f'"{explanation.target} - {others[0]}"'
    return f"{note} In a contrast, such as the target {contrast}, what both classes have in common cancels."


def hidden_line(explanation: Explanation) -> str:
    """Return the score of features that were left out, by which the sum differs from the ledger; empty if none were."""
    if explanation.ledger is None:
        return ""
    hidden = explanation.ledger.inputs - math.fsum(explanation.scores)
    if explanation.sink is not None and explanation.sink.place is None:
        hidden -= explanation.sink.score  # `sink_line` tells it
    largest = max(abs(explanation.ledger.inputs), *map(abs, explanation.scores), 0.0)
    if abs(hidden) <= HIDDEN * largest:
        return ""
    return f"features that are not shown, such as special tokens, have {number(hidden)} of the inputs in the ledger"


def scale_line(scale: float) -> str:
    """Return the legend of the colours."""
    return f"colours from {number(-scale)} (blue, against the target) to {number(scale)} (red, for it)"


def is_signed(explanation: Explanation) -> bool:
    """Return whether scores are for or against the target; those of attention methods are only more or less."""
    return explanation.ledger is not None or any(score < 0 for score in explanation.scores)


def colours_line(explanation: Explanation, scale: float) -> str:
    """Return the legend of the colours, which does not mention a sign if the scores have none."""
    if is_signed(explanation):
        return scale_line(scale)
    return f"colours from 0 to {number(scale)} (red); the scores of {explanation.method} have no sign"


def classes_line(explanation: Explanation) -> str:
    """Return the highest classes with their probabilities; empty if the caption says it all."""
    classes = explanation.classes
    if len(classes) < 2:
        return ""
    shown = list(classes[:MOST_CLASSES])
    target = next((one for one in classes if one.label == explanation.target), None)
    if target is not None and target not in shown:
        shown[-1] = target
    listed = ", ".join(
        f"{one.label} {number(one.output) if one.probability is None else f'{one.probability:.1%}'}" for one in shown
    )
    kind = "outputs" if shown[0].probability is None else "classes"
    return f"{kind}{', each by itself' if explanation.provenance.get('head') == 'multi_label' else ''}: {listed}"


def windows_line(explanation: Explanation) -> str:
    """Return a note on the windows of a long text; empty if it was explained as a whole."""
    windows = explanation.windows
    if not windows:
        return ""
    longest = max(window.last - window.first for window in windows)
    outputs = [window.output for window in windows]
    return (
        f"explained in {len(windows)} windows of up to {longest} tokens, with outputs from {number(min(outputs))} to "
        f"{number(max(outputs))}; the output is their mean"
    )


def scales_note(explained: Sequence[Explanation], what: str = "row") -> str:
    """Return the legend of a comparison, in which each method has its own colour scale."""
    signed = [explanation.method for explanation in explained if is_signed(explanation)]
    signless = list(dict.fromkeys(one.method for one in explained if one.method not in signed))
    note = f"each {what} has its own colour scale"
    if signed:
        note += ": red for, blue against the target"
    return f"{note}; without a sign: {', '.join(signless)}" if signless else note


def percent(share: float) -> str:
    """Return a share as a CSS percentage, to a tenth."""
    return f"{round(100 * share, 1) + 0.0:g}%"
