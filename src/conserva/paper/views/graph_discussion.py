"""What the graph experiment's results say, and where they differ from the paper's: words, with numbers read off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

from ...evaluation.result import HIGHER_IS_BETTER
from ...views.evaluation_terminal import TITLES, _bare, interval, short
from ...views.markdown import listed
from ..experiments.findings import means_of, rank_correlation, row_of
from ..experiments.graph_plan import GRAPH_OURS, GRAPH_ROWS
from ..experiments.graph_result import BooksOfRules, GraphResult
from ..experiments.published import published, published_accuracy
from .discussion import _change
from .graph_columns import MEASURES, PAPER, TITLE_OF, Measured, columns, name_of
from .graph_models import reached

OURS = TITLE_OF[GRAPH_OURS]
METRICS = ("auac", "au_mse")
RANDOM, INTENSITY = "random", "intensity"
KEPT = 0.8
"""A rank correlation from which on an order is called kept."""

ROUNDING = 1e-9
"""A gap of at most this share of the logit is rounding, in float64."""

DISCUSSED = tuple(row for row in GRAPH_ROWS if row.group != "yardstick")


def graph_discussion(results: Sequence[GraphResult]) -> str:
    """Return what there is to say, as a list in Markdown; parts about methods that are missing are left out."""
    parts = (_models, _best, _masking, _brightness, _random, _beside_the_paper, _left_empty, _others, _books)
    return "\n".join(f"- {text}" for part in parts for text in part(results))


def _models(results: Sequence[GraphResult]) -> Iterator[str]:
    words = []
    for one in results:
        theirs, each = published_accuracy(one.dataset, one.metric), reached(one)
        if theirs is None:
            continue
        away = 100 * (one.reached() - theirs)
        place = f"{abs(away):.1f} points {'above' if away > 0 else 'below'} the paper's {theirs:.1%}"
        among = f"; its models lie from {min(each):.1%} to {max(each):.1%}" if len(each) > 1 else ""
        words.append(f"{one.title} {MEASURES[one.metric]} {one.reached():.1%}, {place}{among}")
    if words:
        yield f"**Models.** {'. '.join(words)}."


def _best(results: Sequence[GraphResult]) -> Iterator[str]:
    known = [one for one in columns(results) if one.has(GRAPH_OURS)]
    if not known:
        return
    for metric, about in zip(METRICS, ("Activation", "Pruning"), strict=True):
        first = [one.title for one in known if one.best(metric) == GRAPH_OURS]
        sure = [one.title for one in known if one.is_best(metric)]
        text = (
            f"**{about}.** By {TITLES[metric]} {OURS} has the best mean of the paper's methods in "
            f"{_of(first, len(known))}; it beats each of them, every paired interval leaving out 0, in "
            f"{_of(sure, len(known))}."
        )
        nearest = [_nearest(one, metric) for one in known if one.title in first and len(one.means(metric)) > 1]
        text += f" There it is ahead of the next: {'; '.join(nearest)}." if nearest else ""
        ahead = [words for one in known if (words := _ahead(one, metric))]
        yield text + (f" Surely ahead of it: {'; '.join(ahead)}." if ahead else " No other is surely ahead of it.")
    yield (
        "**Signs.** Pruning goes by the size of scores: methods without a sign put evidence against the class first, "
        "signed ones put it last, so AU-MSE does not measure the two kinds alike."
    )


def _nearest(one: Measured, metric: str) -> str:
    """Say by how much the paper's own method is ahead of the method that comes nearest."""
    rivals = [method for method in one.means(metric) if method != GRAPH_OURS]
    gains = {method: one.gain(metric, GRAPH_OURS, method) for method in rivals}
    rival = min(gains, key=lambda method: gains[method].mean)
    return f"in {one.title} {TITLE_OF[rival]} by {_bare(interval(gains[rival]))}"


def _ahead(one: Measured, metric: str) -> str:
    """Say which of the paper's methods are surely ahead of the paper's own, and by how much, the farthest first."""
    found = one.verdict(metric)
    assert found is not None
    gains = {row.title: one.gain(metric, row.method, GRAPH_OURS) for row in PAPER if row.title in found.ahead}
    order = sorted(gains, key=lambda title: -gains[title].mean)
    words = [f"{title} by {_bare(interval(gains[title]))}" for title in order]
    return f"in {one.title} {', '.join(words)}" if words else ""


def _masking(results: Sequence[GraphResult]) -> Iterator[str]:
    for result in results:
        each = [one for one in columns([result]) if one.means("auac")]
        if len(each) < 2:
            continue
        pairs = {
            f"{a.mask} and {b.mask}": rank_correlation(a.means("auac"), b.means("auac"))
            for a, b in combinations(each, 2)
        }
        known = {pair: value for pair, value in pairs.items() if value is not None}
        first = {one.mask: str(one.best("auac")) for one in each}
        if len(set(first.values())) == 1:
            who = f"{TITLE_OF[first[each[0].mask]]} has the best mean of the paper's methods under every masking."
        else:
            who = f"the best mean of the paper's methods goes to {_by_method(first)}: the masking decides who is first."
        yield f"**Does the masking decide? {result.title}.** By AUAC {who} {_order(known)}".rstrip()


def _order(known: Mapping[str, float]) -> str:
    """Say whether the order of the methods stays, from the rank correlations between maskings."""
    if not known:
        return ""
    lowest = min(known, key=lambda pair: known[pair])
    words = listed([f"{_n(value)} between {pair}" for pair, value in known.items()])
    kept = f"is kept ({_n(KEPT)} or more)" if known[lowest] >= KEPT else f"is not kept, least between {lowest}"
    return f"The rank correlation of the methods' means is {words}, so the order as a whole {kept}."


def _by_method(first: Mapping[str, str]) -> str:
    """Say which method is first under which maskings."""
    masks: dict[str, list[str]] = {}
    for mask, method in first.items():
        masks.setdefault(method, []).append(mask)
    return listed([f"{TITLE_OF[method]} under {listed(names)}" for method, names in masks.items()])


def _brightness(results: Sequence[GraphResult]) -> Iterator[str]:
    for one in columns(results):
        if one.mask != "blank" or not one.has(INTENSITY, GRAPH_OURS):
            continue
        words = []
        for metric in METRICS:
            gain = one.gain(metric, GRAPH_OURS, INTENSITY)
            means = one.means(metric) | {INTENSITY: _mean(one, metric, INTENSITY)}
            place = "surely better" if gain.low > 0 else "surely worse" if gain.high < 0 else "level with it"
            beat = [
                row.title
                for row in DISCUSSED
                if one.has(row.method) and one.gain(metric, row.method, INTENSITY).low > 0
            ]
            words.append(
                f"By {TITLES[metric]} the order of brightness gets {_n(means[INTENSITY])} and {OURS} "
                f"{_n(means[GRAPH_OURS])}, {place} ({_bare(interval(gain))}, positive is better); "
                + (f"it is surely beaten by {listed(beat)}." if beat else "no method surely beats it.")
            )
        yield (
            f"**Brightness, {one.title}.** A blanked superpixel is black, so showing the bright ones first shows the "
            f"digit: a method that does not beat that order here has shown nothing. {' '.join(words)}"
        )


def _random(results: Sequence[GraphResult]) -> Iterator[str]:
    known = [one for one in columns(results) if one.has("gi", RANDOM)]
    if not known:
        return
    words = []
    for metric in METRICS:
        places: dict[str, list[str]] = {"surely better": [], "level": [], "surely worse": []}
        for one in known:
            gain = one.gain(metric, "gi", RANDOM)
            place = "surely better" if gain.low > 0 else "surely worse" if gain.high < 0 else "level"
            places[place].append(one.title)
        found = [f"{place} in {', '.join(titles)}" for place, titles in places.items() if titles]
        words.append(f"By {TITLES[metric]} GI is {'; '.join(found)}.")
    theirs = [
        f"{name_of(one)} {_n(plain.value)} against {_n(floor.value)}"
        for one in results
        if (plain := published("auac", one.dataset, "gi")) and (floor := published("auac", one.dataset, RANDOM))
    ]
    yield (
        f"**GI against a random order.** {' '.join(words)}"
        + (f" The paper's AUAC: {', '.join(theirs)}." if theirs else "")
    )


def _beside_the_paper(results: Sequence[GraphResult]) -> Iterator[str]:
    for result in results:
        each = columns([result])
        words = []
        for metric in METRICS:
            theirs = _published(metric, result.dataset)
            orders = {one.mask: rank_correlation(one.means(metric), theirs) for one in each}
            known = [f"{_n(value)} under {mask}" for mask, value in orders.items() if value is not None]
            if known:
                words.append(f"by {TITLES[metric]} {listed(known)}")
        if not words:
            continue
        text = (
            f"**Beside the paper, {result.title}.** Rank correlation of the means with the paper's: {'; '.join(words)}."
        )
        theirs = _published("auac", result.dataset)
        away = {one.mask: _distance(one.means("auac"), theirs) for one in each if one.means("auac")}
        nearest = min(away, key=lambda mask: away[mask])
        far = ", ".join(f"{_n(value)} under {mask}" for mask, value in away.items())
        text += f" The AUACs lie in the mean {far} from the paper's"
        text += f": nearest under {nearest}." if len(away) > 1 else "."
        yield f"{text} {_levels(result, each)}".rstrip()
    if any(_published("auac", one.dataset) for one in results):
        yield (
            "**What the paper leaves open.** It says that nodes are removed, not how; nor does it give the width of "
            "the models, the split of BACE, how an area is normalised, whether squared changes are summed or averaged "
            "over logits, or how many graphs were evaluated. So orders and shares can be held against it, and "
            "levels only with care."
        )


def _levels(result: GraphResult, each: Sequence[Measured]) -> str:
    """Return the AUAC of some methods beside the paper's."""
    words = []
    for method in (GRAPH_OURS, "gi", "a-last"):
        theirs = published("auac", result.dataset, method)
        ours = [f"{_n(_mean(one, 'auac', method))} {one.mask}" for one in each if one.has(method)]
        if theirs and ours:
            words.append(f"{TITLE_OF[method]} {_n(theirs.value)} in the paper, here {', '.join(ours)}")
    return f"{'; '.join(words)}." if words else ""


def _left_empty(results: Sequence[GraphResult]) -> Iterator[str]:
    for result in results:
        if not _published("auac", result.dataset):
            continue
        for row in PAPER:
            known = [one for one in columns([result]) if one.has(row.method)]
            if published("auac", result.dataset, row.method) or not known:
                continue
            words = [
                f"{_means_of(one, row.method)} under {one.mask} (by AUAC place {_place(one, row.method)} of "
                f"{len(one.means('auac'))})"
                for one in known
            ]
            yield (
                f"**{row.title} on {result.title}.** The paper's tables leave this cell empty. Here AUAC and AU-MSE "
                f"are {listed(words)}."
            )


def _others(results: Sequence[GraphResult]) -> Iterator[str]:
    known = [one for one in columns(results) if one.evaluation.methods]
    words = []
    for metric in METRICS:
        first: dict[str, list[str]] = {}
        for one in known:
            means = means_of(one.evaluation, metric, DISCUSSED)
            sign = 1 if HIGHER_IS_BETTER[metric] else -1
            if means:
                best = max(means, key=lambda method: sign * means[method])
                first.setdefault(TITLE_OF[best], []).append(one.title)
        best_in = [f"{title} in {', '.join(where)}" for title, where in first.items()]
        words.append(f"by {TITLES[metric]}, {'; '.join(best_in)}")
    yield f"**All methods.** The best mean of all methods, yardsticks apart: {'. And '.join(words)}."
    for method in ("ln", "exact"):
        both = [one for one in known if one.has(method, GRAPH_OURS)]
        gains = [one.gain("auac", method, GRAPH_OURS) for one in both]
        if not gains:
            continue
        low, high = (limit(gain.mean for gain in gains) for limit in (min, max))
        better = [one.title for one, gain in zip(both, gains, strict=True) if gain.low > 0]
        worse = [one.title for one, gain in zip(both, gains, strict=True) if gain.high < 0]
        yield (
            f"**{TITLE_OF[method]} beside {OURS}.** Its AUAC differs by {_change(low)} to {_change(high)}; it is "
            f"surely better in {_of(better, len(both))}, surely worse in {_of(worse, len(both))}."
        )


def _books(results: Sequence[GraphResult]) -> Iterator[str]:
    for one in results:
        books = {each.rules: each for each in one.books}
        exact, ours, plain = (books.get(rules) for rules in ("exact", GRAPH_OURS, "gi"))
        if exact is None or ours is None or plain is None:
            continue
        closed = exact.largest_gap <= ROUNDING * max(1.0, exact.output)
        yield (
            f"**Books, {one.title}.** The logit is nodes + virtual node + biases + gap. Under exact the largest |gap| "
            f"is {exact.largest_gap:.0e}, which is {'rounding' if closed else 'more than rounding'}; the mean |gap| is "
            f"{_part(ours, 'gap')} under {OURS} and {_part(plain, 'gap')} under GI. The sum of nodes and virtual node "
            f"correlates with the logit {_each(books, lambda x: x.correlation)}; with what went to biases taken off "
            f"the logit, {_each(books, lambda x: x.correlation_without_biases)}. Under {OURS} biases carry "
            f"{_part(ours, 'biases')} and the virtual node {_part(ours, 'virtual')}."
        )


def _each(books: Mapping[str, BooksOfRules], value: Callable[[BooksOfRules], float]) -> str:
    names = {"gi": "GI", GRAPH_OURS: OURS, "exact": "exact"}
    return listed([f"{_n(value(books[rules]))} under {title}" for rules, title in names.items()])


def _part(books: BooksOfRules, entry: str) -> str:
    """Return the mean size of an entry, and its share of the mean size of the logit."""
    size = getattr(books, entry)
    share = f" ({size / books.output:.0%} of the mean |logit|)" if books.output else ""
    return f"{_n(size)}{share}"


def _published(metric: str, dataset: str) -> dict[str, float]:
    found = {row.method: published(metric, dataset, row.method) for row in PAPER}
    return {method: one.value for method, one in found.items() if one is not None}


def _distance(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    both = [method for method in ours if method in theirs]
    return sum(abs(ours[method] - theirs[method]) for method in both) / max(1, len(both))


def _mean(one: Measured, metric: str, method: str) -> float:
    found = row_of(one.evaluation, method)
    assert found is not None
    return float(getattr(found, metric).mean)


def _means_of(one: Measured, method: str) -> str:
    return " and ".join(_n(_mean(one, metric, method)) for metric in METRICS)


def _place(one: Measured, method: str) -> int:
    means = one.means("auac")
    return 1 + sum(value > means[method] for value in means.values())


def _of(titles: Sequence[str], count: int) -> str:
    """Say in which columns something holds."""
    if len(titles) == count:
        return f"all {count}" if count > 1 else titles[0]
    return f"{len(titles)} of {count}" + (f" ({', '.join(titles)})" if titles else "")


def _n(value: float | None) -> str:
    return _bare(short(value))
