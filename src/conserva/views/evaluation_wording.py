"""What the page of an evaluation says in words: the summary, and what its numbers mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..evaluation.result import Evaluation, Interval, MethodResult
from .evaluation_terminal import is_random, ranked, short

MEANINGS = {
    "AUAC": "Area under the activation curve. Features are shown to the model, the highest scores first. The number is "
    "the probability of the target, averaged from nothing shown to everything shown. Higher is better.",
    "AU-MSE": "Area under the pruning curve. Features are removed, those with the smallest scores in size first. The "
    "number is the squared change of all logits, averaged likewise: what a method calls unimportant should change "
    "little. Lower is better. It grows with the model's logits, so compare methods with it, not models.",
    "AUPC": "The probability of the target along the same pruning curve. Higher is better.",
    "comprehensiveness": "How much the probability falls when the highest scores are taken away. Higher is better.",
    "sufficiency": "How much it falls when only the highest scores are kept. Lower is better; below 0 it rises.",
    "[low, high]": "The 95 % interval of a mean, by bootstrap over the samples: other samples of the same kind would "
    "mostly give a mean in it.",
    "difference": "Two methods on the same samples, one minus the other. Where its interval includes 0, these samples "
    "do not tell the two apart. An interval speaks for one comparison: of many, some exclude 0 by chance.",
    "conservation": "Whether scores add up to the output they explain. Correlation and slope of the sums against the "
    "outputs are 1, and the gap, the mean distance between the two, is 0, where they do.",
    "random": "A random order of the features: what a method must beat to say anything.",
}

YARDSTICKS = {
    "leave-one-out": "A yardstick, no method of explanation: it asks the model anew for every feature.",
    "intensity": "A yardstick, no method of explanation: superpixels, or patches of a grey image, in the order of "
    "their brightness, whatever the model: what a method must beat to say more than the image does.",
}
"""What the rows apart are."""

MASKS = {
    "unk": "The unknown token stands in the place of one that is taken away.",
    "mask": "The mask token stands in the place of one that is taken away.",
    "pad": "The pad token stands in the place of one that is taken away.",
    "drop": "Nothing looks at a token that is taken away.",
    "token": "Nothing looks at a node that is taken away; the others keep degrees, distances and paths of the whole "
    "graph.",
    "induced": "A node that is taken away is deleted with its edges; degrees, distances and paths are found anew in "
    "what is left.",
    "blank": "A node that is taken away stays in its place and says nothing: an atom has no features, a superpixel is "
    "black.",
}
"""What becomes of features that are taken away."""

ONE_BY_ONE = (
    "Features go and come one at a time: an input has as many steps as features. Areas are taken of its own points; "
    "the curves shown are means over inputs, whose points are joined by straight lines."
)


def meanings(evaluation: Evaluation) -> dict[str, str]:
    """Return what the numbers of an evaluation mean, then its own yardsticks and settings."""
    rows = {one.method for one in evaluation.methods if one.reference}
    found = dict(MEANINGS)
    found |= {name: meaning for name, meaning in YARDSTICKS.items() if name in rows}
    mask = str(evaluation.protocol.get("mask"))
    if mask in MASKS:
        found[f"mask {mask}"] = MASKS[mask]
    if "steps" in evaluation.protocol and evaluation.protocol["steps"] is None:
        found["steps"] = ONE_BY_ONE
    return found


# The summary: rules over numbers that are there, and no claim whose interval includes 0


def summary(evaluation: Evaluation) -> str:
    """Say in plain words which method ranks first, and how sure that is."""
    order = ranked(evaluation, "auac")
    if not order:
        return "No method of explanation is in this evaluation: there is nothing to rank."
    methods = "one method" if len(order) == 1 else f"{len(order)} methods"
    samples = "1 sample" if evaluation.samples == 1 else f"{evaluation.samples} samples"
    first = order[0]
    sentences = [
        f"On {samples} of {evaluation.data}, {methods} of explanation said which parts of an input matter to "
        f"{evaluation.model}. Then the model was shown these parts, the most important first: the sooner it is sure "
        f"of the target, the better the method knew. {_name(first)} ranks first (AUAC {_from_to(first.auac)}).",
        *_lead(evaluation, order),
        *_above_random(evaluation, order),
        *_above_brightness(evaluation, order),
        *_pruning(evaluation, first),
    ]
    return " ".join(sentences)


def _lead(evaluation: Evaluation, order: Sequence[MethodResult]) -> Iterable[str]:
    if len(order) == 1:
        return
    first, second = order[:2]
    found = difference(evaluation, "auac", first.method, second.method)
    name = f"the second, {_name(second)} ({short(second.auac.mean)})"
    if found is None:
        yield f"Whether it is ahead of {name}, was not tested."
    elif found.low > 0:
        yield f"It is ahead of {name}, by {_from_to(found)}."
    else:
        yield f"These samples do not show it ahead of {name}: the difference is {_from_to(found)}."
    level = [_name(one) for one in order[2:] if is_level(difference(evaluation, "auac", first.method, one.method))]
    if level:
        start = "Nor do they" if found and found.low <= 0 else "These samples do not"
        yield f"{start} tell it apart from {_or(level)}."


def _above_random(evaluation: Evaluation, order: Sequence[MethodResult]) -> Iterable[str]:
    orders = [one for one in evaluation.methods if is_random(one.method)]
    if not orders:
        yield "No random order was evaluated, so there is no floor to compare with."
        return
    floor = max(orders, key=lambda one: one.auac.mean)
    name = f"a random order ({short(floor.auac.mean)})"
    above = {_name(one): difference(evaluation, "auac", one.method, floor.method) for one in order}
    found = above.pop(_name(order[0]))
    if found is None:
        yield f"Its distance to {name} was not tested."
    elif found.low > 0:
        yield f"It is above {name} by {_from_to(found)}."
    else:
        yield f"It is not shown to be better than {name}: the difference is {_from_to(found)}."
    failing = [method for method, one in above.items() if one is not None and one.low <= 0]
    if failing:
        yield f"Not shown to be better than a random order: {', '.join(failing)}."


def _above_brightness(evaluation: Evaluation, order: Sequence[MethodResult]) -> Iterable[str]:
    """Say which methods do not beat an order that needs no model, where there is one."""
    if not any(one.reference and one.method == "intensity" for one in evaluation.methods):
        return
    against = {_name(one): difference(evaluation, "auac", one.method, "intensity") for one in order}
    failing = [method for method, one in against.items() if one is not None and one.low <= 0]
    if failing:
        yield f"Not shown to be better than the order of brightness, which asks no model: {', '.join(failing)}."


def _pruning(evaluation: Evaluation, first: MethodResult) -> Iterable[str]:
    """Say the same of the other area of the paper: a method can be first in one, and not in the other."""
    order = ranked(evaluation, "au_mse")
    if len(order) == 1:
        return
    top, second = order[:2]
    found = difference(evaluation, "au_mse", top.method, second.method)
    whether = "not compared with" if found is None else "ahead of" if found.high < 0 else "not told apart from"
    yield (
        "When the least important parts are removed first, and the output should hardly change, "
        f"{_name(top)} ranks first{' too' if top is first else ''} (AU-MSE {short(top.au_mse.mean)}), "
        f"{whether} the second, {_name(second)} ({short(second.au_mse.mean)})."
    )


def difference(evaluation: Evaluation, metric: str, method: str, other: str) -> Interval | None:
    """Return a method minus another, whichever way round the evaluation holds it."""
    for one in evaluation.pairs:
        if (one.metric, one.a, one.b) == (metric, method, other):
            return Interval(one.mean, one.low, one.high)
        if (one.metric, one.a, one.b) == (metric, other, method):
            return Interval(-one.mean, -one.high, -one.low)
    return None


def is_level(found: Interval | None) -> bool:
    """Return whether a difference is known, and its interval includes 0."""
    return found is not None and found.low <= 0 <= found.high


def _from_to(one: Interval) -> str:
    mean, low, high = (short(value, (one.mean, one.low, one.high)) for value in (one.mean, one.low, one.high))
    return f"{mean}, 95 % interval {low} to {high}"


def _name(one: MethodResult) -> str:
    """Return a method's name as it stands in a sentence, where `exact` could be taken for a word of it."""
    return f"“{one.method}”"


def _or(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
