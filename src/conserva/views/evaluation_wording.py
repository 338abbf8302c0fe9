"""Texts, number formats and definitions shared by the views of an evaluation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._util.text import printable
from ..evaluation.comparison import Compared, Interval
from ..evaluation.result import ADDITIONAL, HIGHER_IS_BETTER, Evaluation, MethodResult
from ..tasks.graph import MASKS as NODE_MASKS

TITLES = {"auac": "AUAC", "au_mse": "AU-MSE", "aupc": "AUPC", "srg": "SRG", "lds": "LDS"}
"""Metrics with an acronym; the others are shown by their names."""

SETTINGS = {"target": "target class", "mask": "mask", "steps": "steps"}
"""Settings of the protocol that are shown next to the results -> their labels."""


def short(value: float | None, beside: Sequence[float] = ()) -> str:
    """Return a number with three digits, or with as many decimals as the largest of `beside` has."""
    if value is None:
        return "-"
    if not beside and 0 < abs(value) < 0.0005:
        return f"{value:.0e}"
    largest = max(abs(number) for number in (value, *beside))
    if largest >= 1e6:
        return f"{value:.2e}"
    decimals = next((3 - i for i, bound in enumerate((0.9995, 9.995, 99.95)) if largest < bound), 0)
    return f"{value:.{decimals}f}"  # -0.000 keeps its sign: which side of 0 a limit lies on matters


def interval(estimate: Interval) -> str:
    """Return a mean with its interval, with the same number of decimals."""
    mean, low, high = (
        short(value, (estimate.mean, estimate.low, estimate.high))
        for value in (estimate.mean, estimate.low, estimate.high)
    )
    return f"{mean} [{low}, {high}]"


def heading(metric: str) -> str:
    """Return a metric's name with an arrow: up if higher is better, else down."""
    return f"{TITLES.get(metric, metric)} {'↑' if HIGHER_IS_BETTER[metric] else '↓'}"


def headline(evaluation: Evaluation) -> str:
    """Return the title: model, data, number of samples, and the model's accuracy."""
    samples = "1 sample" if evaluation.samples == 1 else f"{evaluation.samples} samples"
    right = "" if evaluation.accuracy is None else f" · accuracy {evaluation.accuracy:.1%}"
    return f"{evaluation.model} on {evaluation.data} · {samples}{right}"


def protocol_line(evaluation: Evaluation) -> str:
    """Return the evaluation protocol in one line."""
    protocol = evaluation.protocol
    parts = [f"protocol {value_text(protocol['name'])}"] if "name" in protocol else ["protocol"]
    parts += [f"{word} {setting(key, protocol[key])}" for key, word in SETTINGS.items() if key in protocol]
    if is_of_graphs(evaluation):
        parts.append("virtual node kept")
    elif "special" in protocol:
        parts.append("special tokens removed too" if protocol["special"] else "special tokens kept")
    return " · ".join(parts)


def is_of_graphs(evaluation: Evaluation) -> bool:
    """Return whether features are nodes of graphs; the virtual node is then always kept."""
    return evaluation.protocol.get("mask") in NODE_MASKS


def setting(key: str, value: Any) -> str:
    """Return a setting of the protocol as text."""
    return "one for each feature" if key == "steps" and value is None else value_text(value)


def value_text(value: Any) -> str:
    """Return a setting's value as text."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, Mapping | list | tuple):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return printable(str(value))


def best(evaluation: Compared[Any], metric: str) -> set[str]:
    """Return the best method, or all methods with the same best mean."""
    order = evaluation.ranked(metric)
    return {result.method for result in order if getattr(result, metric).mean == getattr(order[0], metric).mean}


def without_zero(text: str) -> str:
    """Return a number without the leading zero (".917"), as in the paper, to save width."""
    return re.sub(r"\b0\.", ".", text)


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
    "against the outputs are 1, and the distance from the output, the mean of |output - sum|, is 0.",
    "random": "A random order of the features: a useful method must beat it.",
}

GUIDE = (
    "AUAC: parts of the input are shown, the most important first. AU-MSE, AUPC: they are removed, the least important "
    "first. Comprehensiveness: the most important are removed; sufficiency: only they are kept."
)
SURELY = "Surely: the 95 % interval of the difference from every other method excludes 0."
"""What a reader needs for the verdict."""

MEANINGS_OF_ADDITIONAL = {
    "srg": "Symmetric relevance gain. Features are removed once with the lowest scores first and once with the highest "
    "first. The number is the mean difference of the target's logit between the two. Higher is better; a "
    "random order has 0 on average. It grows with the model's logits, so use it to compare methods, not models.",
    "lds": "Linear datamodelling score. Random subsets of the features are kept. The number is the rank correlation of "
    "the target's logit with the sum of the scores that are kept. Higher is better. A random order, whose scores are "
    "positive, is above 0 if the logit rises with the number of features that are kept.",
    "tau": "Kendall's tau-b of the scores and the decreases of the target's logit when each feature is removed alone. "
    "Higher is better; leave-one-out itself has 1.",
}
"""Additional metric -> its definition."""

GUIDE_TO_ADDITIONAL = {
    "srg": "SRG: the least important are removed first, less the most important first.",
    "lds": "LDS: random parts are removed, and the sum of the other scores predicts the output.",
    "tau": "Tau: the scores are compared with the effects of each part alone.",
}
"""Additional metric -> what a reader needs for the verdict."""

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

CANDIDATES = 4
"""Maximum number of methods that a verdict names as possibly the best."""

ONE_BY_ONE = (
    "Features are added and removed one at a time: an input has as many steps as features. The areas are computed from "
    "the points of each input; the curves shown are means over inputs, interpolated linearly."
)


def guide(evaluation: Evaluation) -> str:
    """Return what a reader needs for the verdict: what the metrics of this evaluation are."""
    additional = (text for name, text in GUIDE_TO_ADDITIONAL.items() if name in evaluation.metrics)
    return " ".join([GUIDE, *additional, SURELY])


def left_out(evaluation: Evaluation) -> str:
    """Return on how many samples a metric has no value; an empty string if there are none."""
    counts = ", ".join(f"{TITLES.get(name, name)} on {count}" for name, count in evaluation.without_value.items())
    reason = "too few features, or the output does not change without them"
    return counts and f"No value: {counts} of {evaluation.samples} samples ({reason})."


def meanings(evaluation: Evaluation) -> dict[str, str]:
    """Return term -> definition: the metrics, then the yardsticks and settings of this evaluation."""
    rows = {result.method for result in evaluation.methods if result.reference}
    meanings_by_term = dict(MEANINGS)
    measured = [name for name in ADDITIONAL if name in evaluation.metrics]
    meanings_by_term |= {TITLES.get(name, name): MEANINGS_OF_ADDITIONAL[name] for name in measured}
    meanings_by_term |= {name: meaning for name, meaning in YARDSTICKS.items() if name in rows}
    mask = str(evaluation.protocol.get("mask"))
    if mask in MASKS:
        meanings_by_term[f"mask {mask}"] = MASKS[mask]
    if "steps" in evaluation.protocol and evaluation.protocol["steps"] is None:
        meanings_by_term["steps"] = ONE_BY_ONE
    return meanings_by_term


# The verdict and the summary: sentences chosen by fixed rules; a difference is only claimed if its interval excludes 0


def verdict(evaluation: Evaluation) -> str:
    """Return one sentence: which method is surely the best on which measure."""
    order = evaluation.ranked("auac")
    if not order:
        return "This evaluation has no explanation method to rank."
    if not evaluation.pairs:
        return "The methods were not compared with each other or with a random order, so none is surely the best."
    surely: dict[str, list[str]] = {}
    undecided = []
    for metric in evaluation.metrics:
        best_method = evaluation.surely_best(metric)
        named = TITLES.get(metric, metric)
        if best_method is None:
            undecided.append(named)
        else:
            surely.setdefault(_name(best_method), []).append(named)
    kind = f"the best of {len(order)} methods" if len(order) > 1 else "better than a random order"
    best_by_auac = _candidates(evaluation) if TITLES["auac"] in undecided else ""
    if not surely:
        return f"On these samples no method is surely {kind} on any measure{best_by_auac}."
    if len(surely) == 1 and not undecided:
        return f"{next(iter(surely))} is surely {kind} on every measure."
    (first, metrics), *rest = surely.items()
    others = "".join(f", {name} on {_and(names)}" for name, names in rest)
    open_metrics = [name for name in undecided if not (best_by_auac and name == TITLES["auac"])]
    end = f"; on {_and(open_metrics)} no method is" if open_metrics else ""
    return f"{first} is surely {kind} on {_and(metrics)}{others}{best_by_auac}{end}."


def _candidates(evaluation: Evaluation) -> str:
    """Return the part of the verdict that names the methods that may be the best by AUAC, if they are few."""
    names = [_name(result) for result in evaluation.possibly_best("auac")]
    return f"; on AUAC the best may be {_or(names)}" if 1 < len(names) <= CANDIDATES else ""


def summary(evaluation: Evaluation) -> str:
    """Return a summary in plain words: which method ranks first, and how certain that is."""
    order = evaluation.ranked("auac")
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
    lead = evaluation.difference("auac", first.method, second.method)
    name = f"the second, {_name(second)} ({short(second.auac.mean)})"
    if lead is None:
        yield f"Its difference to {name} was not tested."
    elif lead.low > 0:
        yield f"It is better than {name}, by {_from_to(lead)}."
    else:
        yield f"These samples do not show that it is better than {name}: the difference is {_from_to(lead)}."
    level = [
        _name(result) for result in order[2:] if is_level(evaluation.difference("auac", first.method, result.method))
    ]
    if level:
        start = "Nor do they" if lead and lead.low <= 0 else "These samples do not"
        yield f"{start} show a difference to {_or(level)}."


def _above_random(evaluation: Evaluation, order: Sequence[MethodResult]) -> Iterable[str]:
    orders = [result for result in evaluation.methods if result.is_random]
    if not orders:
        yield "No random order was evaluated, so there is no baseline to compare with."
        return
    baseline = max(orders, key=lambda result: result.auac.mean)
    name = f"a random order ({short(baseline.auac.mean)})"
    above = {_name(result): evaluation.difference("auac", result.method, baseline.method) for result in order}
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
    against = {_name(result): evaluation.difference("auac", result.method, "intensity") for result in order}
    failing = [method for method, estimate in against.items() if estimate is not None and estimate.low <= 0]
    if failing:
        yield f"Not shown to be better than the order of brightness, which needs no model: {', '.join(failing)}."


def _pruning(evaluation: Evaluation, first: MethodResult) -> Iterable[str]:
    """Yield a sentence on the ranking by AU-MSE, which can differ from that by AUAC."""
    order = evaluation.ranked("au_mse")
    if len(order) == 1:
        return
    top, second = order[:2]
    lead = evaluation.difference("au_mse", top.method, second.method)
    whether = "not compared with" if lead is None else "better than" if lead.high < 0 else "not shown to be better than"
    yield (
        "When the least important parts are removed first, the output should hardly change: here "
        f"{_name(top)} ranks first{' too' if top is first else ''} (AU-MSE {short(top.au_mse.mean)}), "
        f"{whether} the second, {_name(second)} ({short(second.au_mse.mean)})."
    )


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


def by_auac(methods: Iterable[MethodResult]) -> list[MethodResult]:
    """Return methods, the highest AUAC first."""
    return sorted(methods, key=lambda result: -result.auac.mean)


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _or(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
