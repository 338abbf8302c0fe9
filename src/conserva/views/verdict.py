"""The verdict of an explanation in one sentence: what the model decided, how sure it is, and why."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

from .._util.text import displayed, printable
from ..results.explanation import Explanation
from .picture_nodes import strongest
from .wording import is_signed, number
from .written_text import section_names, spelled

_LONGEST = 40
_MENTIONED = 2
"""The number of features named on each side."""

_SMALL = 0.05
"""Features below this share of the largest score are not named; nor is any if other parts of the output are so much
larger."""

_GAP = "the gap"

_NAME = re.compile("(?<=“)[^”]*(?=”)")


def isolated(sentence: str) -> list[str]:
    """Return a sentence in parts, of which every second is a quoted name that is read from right to left."""
    parts, end = [], 0
    for name in _NAME.finditer(sentence):
        if any(map(_is_right_to_left, name[0])):
            parts += [sentence[end : name.start()], name[0]]
            end = name.end()
    return [*parts, sentence[end:]]


def _is_right_to_left(letter: str) -> bool:
    return unicodedata.bidirectional(letter) in ("R", "AL")


def verdict(explanation: Explanation) -> str:
    """Return what the model decided, how sure it is, and which features speak most for and against it."""
    reasons = _reasons(explanation)
    return f"{decision(explanation)}: {reasons}." if reasons else f"{decision(explanation)}."


def agreement(explained: Sequence[Explanation]) -> str:
    """Return which feature has the highest score by each of several methods; empty without features."""
    by_name: dict[tuple[str, str], list[str]] = {}
    for explanation in explained:
        if not explanation.method.startswith("random") and (scores := _named(explanation)):
            name, _ = max(scores, key=lambda each: each[1])
            says = "counts most for it" if is_signed(explanation) else "has the highest score"
            by_name.setdefault((name, says), []).append(displayed(explanation).method)
    if len(explained) < 2 or not by_name:
        return ""
    groups = sorted(by_name.items(), key=lambda each: -len(each[1]))
    if len(groups) == 1:
        return " ".join((*groups[0][0], "by every method"))
    return "; ".join(f"{name} {says} by {_enumerated(methods)}" for (name, says), methods in groups)


def _enumerated(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def decision(explanation: Explanation) -> str:
    """Return what the model decided and how sure it is."""
    shown = displayed(explanation)
    target, classes = shown.target.strip() or shown.target, shown.classes
    sure = None if shown.probability is None else f"a probability of {shown.probability:.1%}"
    if not classes or classes[0].probability is None or shown.provenance.get("head") in ("multi_label", "binary"):
        if sure is not None:
            return f"The model gives {target} {sure}"
        return "The output is " + number(shown.output) if target == "output" else _output(target, shown.output)
    best = classes[0]
    if shown.target == best.label:
        return f"The model predicts {target} with {sure}"
    explained = f"explained is {target}, with {sure or f'the output {number(shown.output)}'}"
    return f"The model predicts {best.label.strip() or best.label} ({best.probability:.1%}); {explained}"


def _output(target: str, output: float) -> str:
    return f"The output for {target} is {number(output)}"


def _reasons(explanation: Explanation) -> str:
    scores = _named(explanation)
    largest = max((abs(score) for _, score in scores), default=0.0)
    rest = _rest(explanation)
    most = max(rest, key=lambda name: abs(rest[name]))
    if scores and largest < _SMALL * abs(rest[most]):
        kind = "node" if explanation.picture is not None else "word"
        return f"no {kind} counts much; {most} {'has' if most == _GAP else 'have'} {number(rest[most])}"
    named: dict[str, float] = {}
    for name, score in sorted(scores, key=lambda each: -abs(each[1])):
        if abs(score) > _SMALL * largest:
            named.setdefault(name, score)  # a word that occurs several times is named once
    above = [each for each in named.items() if each[1] > 0][:_MENTIONED]
    below = [each for each in named.items() if each[1] < 0][:_MENTIONED]
    if not is_signed(explanation):
        return f"{_listed(above)} {_plural(above, 'has the highest score', 'have the highest scores')}" if above else ""
    for_it = f"{_listed(above)} {_plural(above, 'counts', 'count')} most for it" if above else ""
    verb = "" if above else _plural(below, " counts", " count")
    return ", ".join(filter(None, (for_it, f"{_listed(below)}{verb} most against it" if below else "")))


def _rest(explanation: Explanation) -> dict[str, float]:
    """Return the parts of the output that are not among the named features."""
    special = (score for score, added in zip(explanation.scores, explanation.special, strict=True) if added)
    rest = {"special tokens": math.fsum(special)}
    if explanation.ledger is not None:
        ledger = explanation.ledger
        rest |= {"positions": ledger.positions, "biases": ledger.biases, _GAP: ledger.gap}
    return rest


def _plural(named: list[tuple[str, float]], one: str, several: str) -> str:
    return one if len(named) == 1 else several


def _named(explanation: Explanation) -> list[tuple[str, float]]:
    """Return name and score of each word or node."""
    if explanation.picture is not None:
        return strongest(displayed(explanation))
    words = explanation.merged().visible()
    sections = [f" in the {name}" if name else "" for name in section_names(words)]
    names = [f"“{_cut(name)}”{section}" for name, section in zip(spelled(words), sections, strict=True)]
    return list(zip(names, words.scores, strict=True))


def _listed(named: list[tuple[str, float]]) -> str:
    return " and ".join(f"{name} ({number(score)})" for name, score in named)


def _cut(name: str) -> str:
    return printable(name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…")
