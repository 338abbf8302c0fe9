"""What the results of the text experiment say, and where they differ from the paper's: words, with numbers read off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...evaluation.result import Conservation
from ...views.evaluation_terminal import _bare, short
from ..experiments.findings import Range, advantage, best_of, range_of, row_of, verdict
from ..experiments.plan import AH, EXACT, GI, LN, OURS, ROWS, TITLE_OF
from ..experiments.published import published, published_accuracy
from ..experiments.result import TextResult

GAE, GRADIENT_ROLLOUT = "gae", "gae:variant=rollout"
GAMMA = f"{OURS}:gamma=0.01"
NEEDED = (OURS, GI, AH, LN, EXACT, GAE, GRADIENT_ROLLOUT, GAMMA)
FAR = 0.03
"""A difference in AUAC from a published number that is called one."""


def discussion(results: Sequence[TextResult]) -> str:
    """Return what there is to say, as a list in Markdown; nothing where a method that it is about is missing."""
    if any(row_of(one.evaluation, method) is None for one in results for method in NEEDED):
        return ""
    found = (_accuracy, _order, _pruning, _ln_alone, _ah_alone, _gae, _gamma, _pooler, _levels, _below_chance)
    return "\n".join(f"- {text}" for part in found for text in part(results))


def _accuracy(results: Sequence[TextResult]) -> Iterator[str]:
    known = [(one, published_accuracy(one.dataset)) for one in results]
    words = [f"{one.title} {one.accuracy():.1%} (paper {theirs:.1%})" for one, theirs in known if theirs is not None]
    if words:
        yield (
            f"**Accuracy.** {', '.join(words)}, on test splits that had no part in training or in the choice of epoch "
            "and learning rate."
        )
    if any(one.dataset == "imdb" for one in results):
        yield (
            "**IMDB's training.** The authors' script trains on 70 % of all 50,000 reviews and keeps the checkpoint "
            "that is best on the reviews it reports on. Here it is the official training half, less what is held out "
            "for validation, and the test half is looked at once."
        )


def _order(results: Sequence[TextResult]) -> Iterator[str]:
    first = [one.title for one in results if best_of(one.evaluation, "auac") == OURS]
    sure = [one.title for one in results if verdict(one.evaluation, "auac").best]
    yield (
        f"**Activation.** By AUAC {TITLE_OF[OURS]} is the best method of the paper's table on "
        f"{_of(first, results)}; every paired interval leaves out 0 on {_of(sure, results)}."
    )


def _pruning(results: Sequence[TextResult]) -> Iterator[str]:
    sure = [one.title for one in results if verdict(one.evaluation, "au_mse").best]
    ahead: dict[str, list[str]] = {}
    for one in results:
        for title in verdict(one.evaluation, "au_mse").ahead:
            ahead.setdefault(title, []).append(one.title)
    words = "; ".join(f"{title} on {', '.join(where)}" for title, where in ahead.items())
    yield (
        f"**Pruning.** By AU-MSE {TITLE_OF[OURS]} surely beats all methods of the table on {_of(sure, results)}."
        + (f" Ahead of it: {words}." if words else "")
        + " Pruning goes by the size of scores: methods without a sign put evidence against the class first, "
        "signed ones put it last, so the two kinds are not measured alike."
    )


def _ln_alone(results: Sequence[TextResult]) -> Iterator[str]:
    gains = range_of(results, lambda one: advantage(one.evaluation, "auac", OURS, LN).mean)
    ahead = [one.title for one in results if advantage(one.evaluation, "auac", OURS, LN).high < 0]
    theirs = [
        f"{ours.value - alone.value:.3f} on {one.title}"
        for one in results
        if (ours := published("auac", one.dataset, OURS)) and (alone := published("auac", one.dataset, LN))
    ]
    yield (
        f"**LN alone.** LRP (LN), which the paper's tables leave out, is within "
        f"{_span(gains)} of {TITLE_OF[OURS]} in AUAC, and surely ahead on {_of(ahead, results)}."
        + (f" In the authors' numbers the two differ by {', '.join(theirs)}." if theirs else "")
        + " What freezing attention adds is sums that follow the output: the correlation of sum and output is "
        f"{_span(_correlation(results, LN))} under LN and {_span(_correlation(results, OURS))} under AH+LN."
    )


def _ah_alone(results: Sequence[TextResult]) -> Iterator[str]:
    below = [one.title for one in results if advantage(one.evaluation, "auac", AH, GI).high < 0]
    theirs = [
        f"{one.title} {_n(alone.value)} against {_n(plain.value)}"
        for one in results
        if (alone := published("auac", one.dataset, AH)) and (plain := published("auac", one.dataset, GI))
    ]
    yield (
        f"**AH alone.** LRP (AH) is surely below GI in AUAC on {_of(below, results)}"
        + (f" (the paper: {', '.join(theirs)})." if theirs else ".")
    )


def _gae(results: Sequence[TextResult]) -> Iterator[str]:
    gains = range_of(results, lambda one: advantage(one.evaluation, "auac", GRADIENT_ROLLOUT, GAE).mean)
    costs = range_of(results, lambda one: advantage(one.evaluation, "au_mse", GRADIENT_ROLLOUT, GAE).mean)
    cells = [
        f"{one.title}: definition {_mean(one, GAE)}, gradient rollout {_mean(one, GRADIENT_ROLLOUT)}, "
        f"the paper's table {_n(theirs.value)}"
        for one in results
        if (theirs := published("auac", one.dataset, GAE))
    ]
    yield (
        "**GAE is two methods.** The authors' script for SST-2 computes a gradient-weighted rollout, that for IMDB the "
        f"method as defined. The rollout differs by {_span(gains, signed=True)} in AUAC and by "
        f"{_span(costs, signed=True)} in AU-MSE (positive is better). {'; '.join(cells)}."
    )


def _gamma(results: Sequence[TextResult]) -> Iterator[str]:
    auac = range_of(results, lambda one: advantage(one.evaluation, "auac", GAMMA, OURS).mean)
    yield (
        "**Gamma.** The authors' script for IMDB has LRP-gamma with 0.01 in its LRP rows. With the "
        f"output kept as it is, that changes the AUAC of {TITLE_OF[OURS]} by {_span(auac, signed=True)}."
    )


def _pooler(results: Sequence[TextResult]) -> Iterator[str]:
    auac = range_of(results, lambda one: advantage(one.evaluation, "auac", EXACT, OURS).mean)
    yield (
        f"**The tanh of the pooler.** On this model `exact` differs from "
        f"{TITLE_OF[OURS]} in that one place. The slope of sum on output is {_span(_slope(results, OURS))} under AH+LN "
        f"and {_span(_slope(results, EXACT))} under `exact`; the correlation {_span(_correlation(results, OURS))} and "
        f"{_span(_correlation(results, EXACT))}. What `exact` leaves is in the biases. The AUAC changes by "
        f"{_span(auac, signed=True)}."
    )


def _levels(results: Sequence[TextResult]) -> Iterator[str]:
    far = []
    base = ", ".join(dict.fromkeys(str(one.recipe["embeddings"]) for one in results))
    for one in results:
        for row in ROWS:
            theirs, found = published("auac", one.dataset, row.method), row_of(one.evaluation, row.method)
            if row.group in ("paper", "slides") and theirs and found and abs(found.auac.mean - theirs.value) >= FAR:
                far.append(f"{one.title} {row.title} {_n(found.auac.mean)} ({_n(theirs.value)})")
    if far:
        yield (
            f"**Levels.** AUAC {_n(FAR)} or more from the authors' number: {'; '.join(far)}. A level depends on "
            "how sure a classifier is and how often it is right. The authors' classifiers are not public, nor are "
            "their test splits for TweetEval and SILICONE, so the cause cannot be shown. What differs for certain: "
            f"the embeddings ({base}, where they had BERT-base's), pads that are masked, "
            f"{'' if one.recipe['as_released'] else 'scaled scores, '}and the split."
        )


def _below_chance(results: Sequence[TextResult]) -> Iterator[str]:
    for one in results:
        if one.accuracy() < one.majority:
            valid = max(each.validation_accuracy for each in one.trained)
            yield (
                f"**{one.title}.** Its classifiers reach up to "
                f"{valid:.1%} on the validation split, and {one.accuracy():.1%} on the test split, where always saying "
                f"the most frequent class gives {one.majority:.1%}: the two splits are not alike. The true class is "
                "explained, so half of the explanations are about a class that the model rejects."
            )


def _correlation(results: Sequence[TextResult], method: str) -> Range:
    return range_of(results, lambda one: _books(one, method).correlation)


def _slope(results: Sequence[TextResult], method: str) -> Range:
    return range_of(results, lambda one: _books(one, method).slope)


def _books(one: TextResult, method: str) -> Conservation:
    found = row_of(one.evaluation, method)
    assert found is not None
    return found.conservation


def _mean(one: TextResult, method: str) -> str:
    found = row_of(one.evaluation, method)
    return _n(None if found is None else found.auac.mean)


def _of(titles: Sequence[str], results: Sequence[TextResult]) -> str:
    """Say on which datasets something holds."""
    if len(titles) == len(results):
        return f"all {len(results)}" if len(results) > 1 else titles[0]
    return f"{len(titles)} of {len(results)}" + (f" ({', '.join(titles)})" if titles else "")


def _span(found: Range, signed: bool = False) -> str:
    low, high = (_change(value) if signed else _n(value) for value in (found.low, found.high))
    return low if low == high else f"{low} to {high}"


def _change(value: float) -> str:
    """Write a difference with its sign, as many digits as the tables have."""
    return f"{value:+.{3 if abs(value) < 1 else 2}f}".replace("0.", ".", 1)


def _n(value: float | None) -> str:
    return _bare(short(value))
