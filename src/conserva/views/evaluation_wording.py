"""Texts of the page of an evaluation: the summary, and the definitions of the terms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..evaluation.result import Evaluation, Interval, MethodResult
from .evaluation_terminal import is_random, ranked, short

MEANINGS = {
    "AUAC": "Area under the activation curve. Features are added to an empty input, those with the highest scores "
    "first. The number is the mean probability of the target along the way. Higher is better.",
    "AU-MSE": "Area under the pruning curve. Features are removed, those with the smallest |scores| first. The number "
    "is the mean squared change of all logits along the way: removing unimportant features should change little. "
    "Lower is better. It grows with the model's logits, so use it to compare methods, not models.",
    "AUPC": "The mean probability of the target along the same pruning curve. Higher is better.",
    "comprehensiveness": "How much the probability falls when the features with the highest scores are removed. Higher "
    "is better.",
    "sufficiency": "How much the probability falls when only the features with the highest scores are kept. Lower is "
    "better; below 0 the probability rises.",
    "[low, high]": "The 95 % bootstrap confidence interval of a mean over the samples.",
    "difference": "The mean difference of two methods on the same samples. If its interval includes 0, these samples "
    "do not show which one is better. The intervals are not corrected for multiple comparisons: of many, some exclude "
    "0 by chance.",
    "conservation": "Whether the scores sum to the output they explain. If they do, correlation and slope of the sums "
    "against the outputs are 1, and the gap, the mean distance between the two, is 0.",
    "random": "A random order of the features: a useful method must beat it.",
}

YARDSTICKS = {
    "leave-one-out": "A yardstick, not an explanation method: it runs the model again without each feature.",
    "intensity": "A yardstick, not an explanation method: superpixels, or patches of a grey image, ordered by "
    "brightness without any model. A useful method must beat it.",
}
"""Yardstick -> its definition."""

MASKS = {
    "unk": "A removed token is replaced by the unknown token.",
    "mask": "A removed token is replaced by the mask token.",
    "pad": "A removed token is replaced by the pad token.",
    "drop": "A removed token is masked out of the attention.",
    "token": "A removed node is masked out of the attention; the others keep degrees, distances and paths of the whole "
    "graph.",
    "induced": "A removed node is deleted with its edges; degrees, distances and paths are recomputed in the remaining "
    "graph.",
    "blank": "A removed node keeps its position and edges but loses its features: an atom has none, a superpixel is "
    "black.",
}
"""Mask of the protocol -> how a feature is removed."""

ONE_BY_ONE = (
    "Features are added and removed one at a time: an input has as many steps as features. The areas are computed from "
    "the points of each input; the curves shown are means over inputs, interpolated linearly."
)


def meanings(evaluation: Evaluation) -> dict[str, str]:
    """Return term -> definition: the metrics, then the yardsticks and settings of this evaluation."""
    rows = {result.method for result in evaluation.methods if result.reference}
    meanings_by_term = dict(MEANINGS)
    meanings_by_term |= {name: meaning for name, meaning in YARDSTICKS.items() if name in rows}
    mask = str(evaluation.protocol.get("mask"))
    if mask in MASKS:
        meanings_by_term[f"mask {mask}"] = MASKS[mask]
    if "steps" in evaluation.protocol and evaluation.protocol["steps"] is None:
        meanings_by_term["steps"] = ONE_BY_ONE
    return meanings_by_term


# The summary: sentences chosen by fixed rules; a difference is only claimed if its interval excludes 0


def summary(evaluation: Evaluation) -> str:
    """Return a summary in plain words: which method ranks first, and how certain that is."""
    order = ranked(evaluation, "auac")
    if not order:
        return "This evaluation has no explanation method to rank."
    methods = "one method" if len(order) == 1 else f"{len(order)} methods"
    samples = "1 sample" if evaluation.samples == 1 else f"{evaluation.samples} samples"
    first = order[0]
    sentences = [
        f"On {samples} of {evaluation.data}, {methods} of explanation ranked the parts of each input by how much they "
        f"matter to {evaluation.model}. Then the model was given these parts one after another, the most important "
        "first: the sooner the probability of the target rises, the better the ranking. "
        f"{_name(first)} ranks first (AUAC {_from_to(first.auac)}).",
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
    lead = difference(evaluation, "auac", first.method, second.method)
    name = f"the second, {_name(second)} ({short(second.auac.mean)})"
    if lead is None:
        yield f"Its difference to {name} was not tested."
    elif lead.low > 0:
        yield f"It is better than {name}, by {_from_to(lead)}."
    else:
        yield f"These samples do not show that it is better than {name}: the difference is {_from_to(lead)}."
    level = [
        _name(result) for result in order[2:] if is_level(difference(evaluation, "auac", first.method, result.method))
    ]
    if level:
        start = "Nor do they" if lead and lead.low <= 0 else "These samples do not"
        yield f"{start} show a difference to {_or(level)}."


def _above_random(evaluation: Evaluation, order: Sequence[MethodResult]) -> Iterable[str]:
    orders = [result for result in evaluation.methods if is_random(result.method)]
    if not orders:
        yield "No random order was evaluated, so there is no baseline to compare with."
        return
    baseline = max(orders, key=lambda result: result.auac.mean)
    name = f"a random order ({short(baseline.auac.mean)})"
    above = {_name(result): difference(evaluation, "auac", result.method, baseline.method) for result in order}
    lead = above.pop(_name(order[0]))
    if lead is None:
        yield f"Its difference to {name} was not tested."
    elif lead.low > 0:
        yield f"It is better than {name}, by {_from_to(lead)}."
    else:
        yield f"It is not shown to be better than {name}: the difference is {_from_to(lead)}."
    failing = [method for method, estimate in above.items() if estimate is not None and estimate.low <= 0]
    if failing:
        yield f"Not shown to be better than a random order: {', '.join(failing)}."


def _above_brightness(evaluation: Evaluation, order: Sequence[MethodResult]) -> Iterable[str]:
    """Yield a sentence on the methods that are not better than the order of brightness, if it was evaluated."""
    if not any(result.reference and result.method == "intensity" for result in evaluation.methods):
        return
    against = {_name(result): difference(evaluation, "auac", result.method, "intensity") for result in order}
    failing = [method for method, estimate in against.items() if estimate is not None and estimate.low <= 0]
    if failing:
        yield f"Not shown to be better than the order of brightness, which needs no model: {', '.join(failing)}."


def _pruning(evaluation: Evaluation, first: MethodResult) -> Iterable[str]:
    """Yield a sentence on the ranking by AU-MSE, which can differ from that by AUAC."""
    order = ranked(evaluation, "au_mse")
    if len(order) == 1:
        return
    top, second = order[:2]
    lead = difference(evaluation, "au_mse", top.method, second.method)
    whether = "not compared with" if lead is None else "better than" if lead.high < 0 else "not shown to be better than"
    yield (
        "When the least important parts are removed first, the output should hardly change: here "
        f"{_name(top)} ranks first{' too' if top is first else ''} (AU-MSE {short(top.au_mse.mean)}), "
        f"{whether} the second, {_name(second)} ({short(second.au_mse.mean)})."
    )


def difference(evaluation: Evaluation, metric: str, method: str, other: str) -> Interval | None:
    """Return the difference `method` minus `other`, or None if they were not compared."""
    for pair in evaluation.pairs:
        if (pair.metric, pair.a, pair.b) == (metric, method, other):
            return Interval(pair.mean, pair.low, pair.high)
        if (pair.metric, pair.a, pair.b) == (metric, other, method):
            return Interval(-pair.mean, -pair.high, -pair.low)
    return None


def is_level(estimate: Interval | None) -> bool:
    """Return whether a difference was computed and its interval includes 0."""
    return estimate is not None and estimate.low <= 0 <= estimate.high


def _from_to(estimate: Interval) -> str:
    mean, low, high = (
        short(value, (estimate.mean, estimate.low, estimate.high))
        for value in (estimate.mean, estimate.low, estimate.high)
    )
    return f"{mean}, 95 % interval {low} to {high}"


def _name(result: MethodResult) -> str:
    """Return a method's name in quotes: "exact" could be read as a word of the sentence."""
    return f"“{result.method}”"


def _or(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
