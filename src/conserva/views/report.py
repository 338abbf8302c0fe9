"""An evaluation as a page that needs nothing from outside, for readers of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from .._util.text import displayed
from ..evaluation.result import METRICS, Evaluation, Interval, MethodResult
from .curves import conservation_caption, conservation_svg, curves_caption, curves_svg
from .html import PAGE
from .table import (
    SETTINGS,
    best,
    heading,
    headline,
    interval,
    is_of_graphs,
    is_random,
    protocol_line,
    ranked,
    said,
    setting,
    short,
)

STYLE = """
.conserva{font:16px/1.6 system-ui,sans-serif;color:#1a1a1a;--note:#595959;--grid:#ddd;--ground:#fff;max-width:60rem}
.conserva h1{font-size:1.6rem;line-height:1.25;margin:0 0 .4rem}
.conserva h2{font-size:1.15rem;margin:2.4rem 0 .6rem}
.conserva .note,.conserva figcaption{font-size:.85rem;color:var(--note);margin:.3rem 0}
.conserva .summary{font-size:1.08rem;max-width:46rem}
.conserva nav{font-size:.85rem;margin:1rem 0}
.conserva nav a{margin-right:1rem}
.conserva a{color:inherit}
.conserva a:focus-visible,.conserva .scroll:focus-visible{outline:2px solid currentColor;outline-offset:2px}
.conserva .scroll{overflow-x:auto;margin:.6rem 0}
.conserva table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;line-height:1.35}
.conserva th,.conserva td{padding:.25rem 0 .25rem 1.1rem;text-align:right;white-space:nowrap;font-weight:400}
.conserva thead th{font-weight:600;border-bottom:1px solid var(--note);vertical-align:bottom}
.conserva tr>:first-child{text-align:left;padding-left:0;position:sticky;left:0;background:var(--ground)}
.conserva tbody+tbody tr:first-child>*{border-top:1px solid var(--note)}
.conserva .low{color:var(--note)}
.conserva td strong,.conserva th strong{font-weight:700}
.conserva figure{margin:1rem 0}
.conserva svg{display:block;width:100%;height:auto;min-width:42rem}
.conserva dl{display:grid;grid-template-columns:max-content 1fr;gap:.3rem 1.4rem;margin:.6rem 0}
.conserva dt{font-weight:600}
.conserva dd{margin:0;overflow-wrap:anywhere;max-width:46rem}
@media (max-width:40rem){.conserva dl{display:block}.conserva dd{margin-bottom:.5rem}}
@media (prefers-color-scheme:dark){.conserva{color:#f2f2f2;--note:#b3b3b3;--grid:#3a3d44;--ground:#16181d}}
@media print{.conserva{font-size:11pt}.conserva nav{display:none}.conserva .scroll{overflow:visible}
.conserva figure,.conserva tr,.conserva dd{break-inside:avoid}.conserva h2{break-after:avoid}
.conserva svg{min-width:0}.conserva table{font-size:.62rem}.conserva th,.conserva td{padding-left:.55rem}}
"""

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

Cells = Callable[[MethodResult], list[str]]

WORDS = {"special": "special tokens go too", "eraser_percent": "percent of features, comprehensiveness and sufficiency"}
"""What settings are called on the page."""


def report(evaluation: Evaluation) -> str:
    """Return an evaluation as a whole page: summary, table, figures, differences, and how to read them."""
    evaluation = displayed(evaluation)
    sections = {
        "Results": _results(evaluation),
        "Curves": _figure(curves_svg(evaluation), curves_caption(evaluation)),
        "Differences": _differences(evaluation),
        "Conservation": _conservation(evaluation),
        "Protocol": _list(_protocol(evaluation)),
        "Provenance": _list({key: said(value) for key, value in evaluation.provenance.items()}),
        "Methods that do not apply": _list(evaluation.refused),
        "How to read this": _list({**MEANINGS, **_own_meanings(evaluation)}),
    }
    sections = {title: body for title, body in sections.items() if body}
    names = {title: title.lower().replace(" ", "-") for title in sections}
    links = " ".join(f'<a href="#{names[title]}">{title}</a>' for title in sections)
    parts = [
        f'<style>{STYLE}</style>\n<main class="conserva">\n<h1>How faithful are the explanations?</h1>',
        f'<p class="note">{escape(headline(evaluation))}<br>{escape(protocol_line(evaluation))}</p>',
        f'<p class="summary">{escape(summary(evaluation))}</p>\n<nav aria-label="Sections">{links}</nav>',
        *(f'<section id="{names[title]}">\n<h2>{title}</h2>\n{body}\n</section>' for title, body in sections.items()),
        "</main>",
    ]
    return PAGE.format(title=escape(f"Faithfulness: {headline(evaluation)}"), body="\n".join(parts))


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
    level = [_name(one) for one in order[2:] if _level(difference(evaluation, "auac", first.method, one.method))]
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


def _level(found: Interval | None) -> bool:
    return found is not None and found.low <= 0 <= found.high


def _from_to(one: Interval) -> str:
    mean, low, high = (short(value, (one.mean, one.low, one.high)) for value in (one.mean, one.low, one.high))
    return f"{mean}, 95 % interval {low} to {high}"


def _name(one: MethodResult) -> str:
    """Return a method's name as it stands in a sentence, where `exact` could be taken for a word of it."""
    return f"“{one.method}”"


def _or(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


# The sections


def _protocol(evaluation: Evaluation) -> dict[str, str]:
    found = dict(evaluation.protocol)
    if is_of_graphs(evaluation):
        found.pop("special", None)  # a graph has no special tokens
        found["virtual node"] = "stays"
    return {SETTINGS.get(key, WORDS.get(key, key)): setting(key, value) for key, value in found.items()}


def _own_meanings(evaluation: Evaluation) -> dict[str, str]:
    """Return what is to be said of this evaluation's rows and settings, and not of every one's."""
    rows = {one.method for one in evaluation.methods if one.reference}
    found = {name: meaning for name, meaning in YARDSTICKS.items() if name in rows}
    mask = str(evaluation.protocol.get("mask"))
    if mask in MASKS:
        found[f"mask {mask}"] = MASKS[mask]
    if "steps" in evaluation.protocol and evaluation.protocol["steps"] is None:
        found["steps"] = ONE_BY_ONE
    return found


def _results(evaluation: Evaluation) -> str:
    winners = {metric: best(evaluation, metric) for metric in METRICS}

    def cells(one: MethodResult) -> list[str]:
        return [_cell(interval(getattr(one, metric)), one.method in winners[metric]) for metric in METRICS]

    apart = " Below the line: yardsticks." if any(one.reference for one in evaluation.methods) else ""
    caption = f"Means with 95 % intervals. Bold: the best of a column, random apart.{apart}"
    return _table(caption, [heading(metric) for metric in METRICS], evaluation, cells)


def _differences(evaluation: Evaluation) -> str:
    firsts = {metric: order[0].method for metric in METRICS if (order := ranked(evaluation, metric))}
    known = {(pair.metric, name) for pair in evaluation.pairs for name in (pair.a, pair.b)}
    firsts = {metric: first for metric, first in firsts.items() if (metric, first) in known}
    if not firsts:
        return '<p class="note">No differences between methods were computed.</p>'

    def cells(one: MethodResult) -> list[str]:
        return [_difference_cell(evaluation, metric, one.method, first) for metric, first in firsts.items()]

    titles = [f"{heading(metric)}<br>minus {escape(first)}" for metric, first in firsts.items()]
    caption = (
        "Each method minus the best of the column, on the same samples. Bold: the interval excludes 0; grey: it "
        "includes 0, and these samples do not tell the two apart."
    )
    return _table(caption, titles, evaluation, cells)


def _difference_cell(evaluation: Evaluation, metric: str, method: str, first: str) -> str:
    if method == first:
        return "<td>best</td>"
    found = difference(evaluation, metric, method, first)
    if found is None:
        return '<td class="low">not compared</td>'
    return _cell(interval(found), not _level(found), "low" if _level(found) else "")


def _conservation(evaluation: Evaluation) -> str:
    def cells(one: MethodResult) -> list[str]:
        books = one.conservation
        return [f"<td>{short(value)}</td>" for value in (books.correlation, books.slope, books.gap)]

    caption = (
        "The sum of the scores against the output. Where scores add up, these are 1, 1 and 0; -: sums do not vary."
    )
    table = _table(caption, ["correlation", "slope", "gap"], evaluation, cells)
    return _figure(conservation_svg(evaluation), conservation_caption(evaluation)) + table


def _table(caption: str, titles: Sequence[str], evaluation: Evaluation, cells: Cells) -> str:
    """Return a table of all methods, the yardsticks in a part of their own; it scrolls where it is too wide."""
    bodies = []
    for reference in (False, True):
        rows = [one for one in evaluation.methods if one.reference == reference]
        lines = "\n".join(f'<tr><th scope="row">{escape(one.method)}</th>{"".join(cells(one))}</tr>' for one in rows)
        if rows:
            start = '<tbody class="low">' if reference else "<tbody>"
            bodies.append(f"{start}\n{lines}\n</tbody>")
    head = "".join(f'<th scope="col">{title}</th>' for title in ("method", *titles))
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n{''.join(bodies)}\n</table>"
    return f'<p class="note">{escape(caption)}</p>\n{_scrolling(table, caption)}'


def _scrolling(body: str, label: str) -> str:
    """Return what may be wider than a page, to be scrolled by keyboard too."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">\n{body}\n</div>'


def _cell(text: str, strong: bool, kind: str = "") -> str:
    mean, _, limits = text.partition(" ")
    mean = f"<strong>{mean}</strong>" if strong else mean
    return f'<td class="{kind}">{mean} <span class="low">{limits}</span></td>'


def _figure(svg: str, caption: str) -> str:
    return f"<figure>\n{_scrolling(svg, 'Figure')}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def _list(entries: Mapping[str, str]) -> str:
    lines = "\n".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in entries.items())
    return f"<dl>\n{lines}\n</dl>" if entries else ""
