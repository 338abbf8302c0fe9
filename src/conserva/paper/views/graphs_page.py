"""The graph experiment as a page in Markdown: every number on it is read from the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..._util.text import printable
from ...evaluation.result import HIGHER_IS_BETTER
from ...views.evaluation_terminal import TITLES, heading, value_text
from ...views.markdown import escaped, file_name, listed, picture, stacked, table
from ..experiments.findings import behind, published_share, row_of, share_of_random, spread
from ..experiments.graph_plan import GRAPH_OURS, GRAPH_ROWS
from ..experiments.graph_result import GraphResult
from ..experiments.plan import Row
from ..experiments.published import published, sources
from .classifiers import NONE
from .graph_columns import MASKINGS, TITLE_OF, Measured, columns, is_quick, name_of, samples_of, steps_of
from .graph_discussion import graph_discussion
from .graph_models import models, trainings_tried
from .graph_panels import books_caption, graph_curves_caption
from .results_page import QUICK, SOURCES, _interval, _number, _seeds_of, _words

METRICS = ("auac", "au_mse")
GROUPS = {"paper": "the paper's methods", "more": "other methods", "yardstick": "yardsticks"}
"""The groups of tables 1 and 2, and what they are called."""

RIVALS = ("gi", "ah", "ln", "gae")
EACH = ("random", "a-last", "gae", "gi", GRAPH_OURS, "exact")
CURVES, CONSERVATION, EXAMPLES = "curves.png", "conservation.png", "examples.html"

Cell = Callable[[Measured, Row], str]
Theirs = Callable[[GraphResult, Row], str]


def page(results: Sequence[GraphResult], notes: str = "", tried: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the whole page.

    `notes`, in Markdown, stand below what is to be read from the numbers; `tried` are trainings with other recipes.
    """
    pictures = [examples_name(one) for one in results]
    results, tried, notes = escaped(results), escaped(tried), printable(notes, keep="\n\t")
    discussed = "" if is_quick(results) else graph_discussion(results)
    sections = {
        "Models": "\n\n".join(part for part in (models(results), trainings_tried(results, tried)) if part),
        "What to read from it": "\n\n".join(part for part in (discussed, notes.strip()) if part),
        "Table 1: AUAC": _areas(results, "auac"),
        "Table 2: AU-MSE": "\n\n".join((_areas(results, "au_mse"), _shares(results))),
        f"Is {TITLE_OF[GRAPH_OURS]} best among the paper's methods?": _verdicts(results),
        "Models differ": _seeds(results),
        "Where relevance goes": _books(results),
        "Curves": picture(CURVES, "Activation and pruning curves of every dataset", graph_curves_caption(results)),
        "Examples": _examples(results, pictures),
        "How to run it again": _again(results),
    }
    body = "\n\n".join(f"## {title}\n{text}" for title, text in sections.items() if text)
    return f"# Tables 1 and 2 of Ali et al. (2022), graphs\n\n{_start(results)}\n\n{body}\n"


def examples_name(result: GraphResult) -> str:
    """Return the name of the picture of a dataset's examples."""
    return f"{file_name(result.dataset)}-examples.png"


# What was run


def _start(results: Sequence[GraphResult]) -> str:
    seeds = list(dict.fromkeys(one.seed for result in results for one in result.trained))
    protocol = next(iter(results[0].evaluations.values())).protocol
    layers = listed(list(dict.fromkeys(str(one.shape["num_hidden_layers"]) for one in results)))
    steps = listed([f"{one.title} {steps_of(one)} on {samples_of(one):,} test graphs" for one in results])
    masks = dict.fromkeys(one.mask for one in columns(results))
    parts = [
        f"> **{QUICK}**" if is_quick(results) else "",
        f"Graphormers of {layers} layers, trained for each dataset with {_seeds_of(seeds)}. Explained is the logit of "
        f"the {value_text(protocol.get('target'))} class; scores are those of the nodes' tokens, what their features "
        f"and degrees add up to. Then nodes come, the highest scores first, or go, the smallest |scores| first; the "
        f"virtual node always stays (protocol `{value_text(protocol.get('name'))}`). In steps: {steps}. What it is to "
        "take a node away is not said in the paper, so it is done in several ways:",
        "\n".join(f"- `{mask}`: {MASKINGS.get(mask, '')}." for mask in masks),
        "AUAC is the area under the probability of the class as nodes come, AU-MSE the area under the squared change "
        f"of the logits as nodes go, both over the share of nodes from 0 to 1. Squared changes are summed over logits: "
        f"{_averaged(results)}.",
        "Each graph's points are averaged over the models. `[low, high]` is the 95 % interval of a mean, by bootstrap "
        "over graphs, given these models; how far the models themselves lie apart is told [below](#models-differ). "
        f"Differences are taken on the same graphs. `{NONE}`: the method does not apply, or there is no number.",
        f"Made with {'; '.join(dict.fromkeys(map(_made, results)))}.",
    ]
    return "\n\n".join(part for part in parts if part)


def _averaged(results: Sequence[GraphResult]) -> str:
    shares = {2: "a half", 10: "a tenth"}
    words = [f"{shares.get(len(one.labels), f'1/{len(one.labels)}')} of it on {one.title}" for one in results]
    return f"the mean over logits is {listed(words)}"


def _made(one: GraphResult) -> str:
    versions = [f"{key} {value}" for key, value in one.provenance.items() if key not in ("device", "quick")]
    device = one.provenance.get("device")
    return f"{one.title}: {', '.join(versions)}" + (f", on {device}" if device else "")


# Tables 1 and 2


def _areas(results: Sequence[GraphResult], metric: str) -> str:
    best = {one.title: one.best(metric) for one in columns(results)}

    def cell(one: Measured, row: Row) -> str:
        found = row_of(one.evaluation, row.method)
        return NONE if found is None else _interval(getattr(found, metric), row.method == best[one.title])

    def theirs(one: GraphResult, row: Row) -> str:
        found = published(metric, one.dataset, row.method)
        return NONE if found is None else _number(found.value)

    better = "higher" if HIGHER_IS_BETTER[metric] else "lower"
    used = dict.fromkeys(
        found.source for row in GRAPH_ROWS for one in results if (found := published(metric, one.dataset, row.method))
    )
    parts = [
        f"{heading(metric)}, {better} is better: mean and 95 % interval under each masking; beside them the authors' "
        "number, whose masking is not known. Bold: the best mean among the paper's methods.",
        _by_group(results, cell, theirs),
        "\n".join(f"- {SOURCES[source]}: {sources()[source]}" for source in used),
        _refused(results),
    ]
    return "\n\n".join(part for part in parts if part)


def _shares(results: Sequence[GraphResult]) -> str:
    def cell(one: Measured, row: Row) -> str:
        return _number(share_of_random(one.evaluation, "au_mse", row.method))

    def theirs(one: GraphResult, row: Row) -> str:
        return _number(published_share("au_mse", one.dataset, row.method))

    note = (
        "AU-MSE grows with the scale of the logits and with their number, so raw numbers of two models cannot be held "
        "against each other. Shares of what a random order gets can:"
    )
    return f"### AU-MSE as a share of Random's\n{note}\n\n{_by_group(results, cell, theirs)}"


def _refused(results: Sequence[GraphResult]) -> str:
    found = [(one, *why) for one in columns(results) for why in one.evaluation.refused.items()]
    return "\n".join(f"- {one.title}: `{method}` does not apply: {why}" for one, method, why in found)


def _by_group(results: Sequence[GraphResult], cell: Cell, theirs: Theirs) -> str:
    """Return a table with the methods, group by group; for each dataset a column for each masking, and the paper's."""
    titles = ["method"]
    for result in results:
        titles += [stacked(name_of(result), one.mask) for one in columns([result])]
        titles.append(stacked(name_of(result), "the paper"))
    lines = []
    for group, title in GROUPS.items():
        rows = [
            row for row in GRAPH_ROWS if row.group == group and any(one.has(row.method) for one in columns(results))
        ]
        if rows:
            lines.append([f"*{title}*", *("" for _ in titles[1:])])
        for row in rows:
            cells = []
            for result in results:
                cells += [cell(one, row) for one in columns([result])] + [theirs(result, row)]
            lines.append([row.title, *cells])
    return table(titles, lines)


# Who is best


def _verdicts(results: Sequence[GraphResult]) -> str:
    titles = ["dataset", "masking", "metric", "best", "beats", "level with", "behind"]
    rows = []
    every = columns(results)
    for one in every:
        for metric in METRICS:
            found = one.verdict(metric)
            words = [NONE] * 4 if found is None else _words(found)
            gains = [_gain(one, metric, rival) for rival in RIVALS]
            rows.append([one.result.title, one.mask, TITLES[metric], *words, *gains])
    counts = (
        f"by {TITLES[metric]} in {sum(one.is_best(metric) for one in every)} of {len(every)}" for metric in METRICS
    )
    note = (
        "Best is what beats each of the other methods of the paper, every paired 95 % interval leaving out 0: "
        f"{', '.join(counts)}. The last columns: by how much it is better on the same graphs, in the metric's own "
        "sense, so that positive is better in both. Bold: the interval leaves out 0."
    )
    return f"{note}\n\n{table([*titles, *(f'over {TITLE_OF[rival]}' for rival in RIVALS)], rows, words=len(titles))}"


def _gain(one: Measured, metric: str, rival: str) -> str:
    """Return by how much the paper's own method is better than another; bold where that is sure."""
    if not one.has(GRAPH_OURS, rival):
        return NONE
    found = one.gain(metric, GRAPH_OURS, rival)
    return _interval(found, found.low > 0 or found.high < 0)


def _seeds(results: Sequence[GraphResult]) -> str:
    parts = [
        "Each model alone, in the order of the seeds; ±: half of the distance between the largest and the smallest. "
        "The last column: on which models the order of the two means holds."
    ]
    for metric in METRICS:
        order = f"{TITLE_OF[GRAPH_OURS]} better than {TITLE_OF['gi']}"
        titles = ["dataset", "masking", *(TITLE_OF[method] for method in EACH), order]
        rows = []
        for one in columns(results):
            means = {model.seed: getattr(model, metric)[one.mask] for model in one.result.trained}
            cells = [_apart([found[method] for found in means.values() if method in found]) for method in EACH]
            below = behind(means, metric, GRAPH_OURS, "gi")
            holds = NONE if below is None else f"not on {_seeds_of(below)}" if below else "on every one"
            rows.append([one.result.title, one.mask, *cells, holds])
        parts.append(f"### {heading(metric)}\n{table(titles, rows, words=2)}")
    return "\n\n".join(parts)


def _apart(values: Sequence[float]) -> str:
    if not values:
        return NONE
    return stacked(", ".join(map(_number, values)), f"± {_number(spread(values))}" if len(values) > 1 else "")


def _books(results: Sequence[GraphResult]) -> str:
    titles = (
        "dataset", "rules", "corr.", "slope", "corr. without biases", "|logit|", "|nodes|", "|virtual node|",
        "|biases|", "|gap|", "largest |gap|",
    )  # fmt: skip
    rows = [
        [one.title, TITLE_OF[each.rules]]
        + [_number(value) for value in (each.correlation, each.slope, each.correlation_without_biases, each.output)]
        + [_size(value) for value in (each.nodes, each.virtual, each.biases, each.gap, each.largest_gap)]
        for one in results
        for each in one.books
    ]
    seeds = listed(list(dict.fromkeys(str(one.trained[0].seed) for one in results)))
    note = (
        "logit = nodes + virtual node + biases + gap, as in figure 3 of the paper, of the true class, in float64, on "
        f"the model of seed {seeds}. First: correlation of the logit with the relevance of nodes and virtual node "
        "together, slope of that on the logit, and the correlation once what went to biases is taken off the logit. "
        "Then means over graphs of the entries' sizes, and the largest gap."
    )
    titles_escaped = [title.replace("|", "\\|") for title in titles]
    shown = picture(CONSERVATION, "Sums of scores against logits", books_caption(results))
    return f"{note}\n\n{table(titles_escaped, rows, words=2)}\n\n{shown}"


def _size(value: float) -> str:
    return f"{value:.0e}" if 0 < value < 0.0005 else _number(value)


def _examples(results: Sequence[GraphResult], names: Sequence[str]) -> str:
    shown = [one for one in results if one.examples]
    if not shown:
        return ""
    methods = listed([f"`{name}`" for name in dict.fromkeys(each.method for one in shown for each in one.examples)])
    note = (
        "As in figure 6 and appendix E of the paper. The first test graphs of each class, in turn, chosen by no eye "
        f"and whatever the model says of them. Explained is the logit of the true class, on the model of seed "
        f"{shown[0].trained[0].seed}, by {methods}. Red for, blue against; every picture has its own scale. With each "
        f"node's number, by `{GRAPH_OURS}`: [{EXAMPLES}]({EXAMPLES})."
    )
    pictures = [
        f"### {one.title}\n{picture(name, f'Examples of {one.title}')}"
        for one, name in zip(results, names, strict=True)
        if one.examples
    ]
    return "\n\n".join([note, *pictures])


def _again(results: Sequence[GraphResult]) -> str:
    given = "" if all(one.shape.get("pre_norm", True) for one in results) else " --post-norm"
    return (
        "```sh\n"
        f"conserva reproduce graphs --device cuda --jobs 6 --out results/graphs{given}\n"
        f"conserva reproduce graphs --quick --out quick{given}    # a small slice of everything, minutes on a CPU\n"
        "```\n"
        "What is done already stays; a run that was stopped goes on where it was. This page is written anew each time: "
        "what is to stay on it belongs into `notes.md` in the same folder."
    )
