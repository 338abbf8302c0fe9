"""The text experiment as a page in Markdown: every number on it is read from the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..._util.text import printable
from ...evaluation.result import HIGHER_IS_BETTER, Interval
from ...views.evaluation_terminal import TITLES, _bare, heading, interval, short, value_text
from ...views.markdown import escaped, file_name, listed, picture, stacked, table
from ..experiments.findings import (
    Verdict,
    advantage,
    best_of,
    definition_of,
    not_ahead,
    published_share,
    row_of,
    share_of_random,
    spread,
    verdict,
)
from ..experiments.plan import AH, EXACT, GI, LN, OURS, ROWS, TITLE_OF, Row
from ..experiments.published import Published, published, sources
from ..experiments.result import TextResult
from .classifiers import NONE, classifiers, trainings_tried
from .discussion import discussion
from .panels import conservation_caption, curves_caption

METRICS = ("auac", "au_mse")
QUICK = "A quick run on a small slice: the numbers mean nothing."

GROUPS = {
    "paper": "the paper's methods",
    "slides": "in the authors' slides",
    "more": "other methods",
    "yardstick": "yardstick",
}
"""The groups of tables 1 and 2, and what they are called."""

SOURCES = {"table": "paper", "notebook": "notebook", "slides": "slides"}
"""How the sources of the authors' numbers are called in a cell."""

RIVALS = (GI, AH, LN, "gae")
CONSERVING = (GI, AH, LN, OURS, EXACT)
EACH = ("random", "gae", GI, OURS, EXACT)

Cell = Callable[[TextResult, Row], str]


def page(results: Sequence[TextResult], notes: str = "", tried: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the whole page.

    `notes`, in Markdown, stand below what is to be read from the numbers; `tried` are trainings with other recipes.
    """
    pictures = [sentences_name(one) for one in results]
    results, tried, notes = escaped(results), escaped(tried), printable(notes, keep="\n\t")
    sections = {
        "Classifiers": "\n\n".join(part for part in (classifiers(results), trainings_tried(results, tried)) if part),
        "What to read from it": "\n\n".join(part for part in (_discussed(results), notes.strip()) if part),
        "Table 1: AUAC": _areas(results, "auac"),
        "Table 2: AU-MSE": "\n\n".join((_areas(results, "au_mse"), _shares(results))),
        f"Is {TITLE_OF[OURS]} best among the paper's methods?": _verdicts(results),
        "What the released code does otherwise": _released(results),
        "Where relevance goes": _conservation(results),
        "Classifiers differ": _seeds(results),
        "Curves": picture("curves.png", "Activation and pruning curves of every dataset", curves_caption(results)),
        "Sentences": _sentences(results, pictures),
        "How to run it again": _again(results),
    }
    body = "\n\n".join(f"## {title}\n{text}" for title, text in sections.items() if text)
    return f"# Tables 1 and 2 of Ali et al. (2022), texts\n\n{_start(results)}\n\n{body}\n"


def _discussed(results: Sequence[TextResult]) -> str:
    return "" if _quick(results) else discussion(results)


def sentences_name(result: TextResult) -> str:
    """Return the name of the picture of a dataset's sentences."""
    return f"sentences-{file_name(result.dataset)}.png"


# What was run


def _start(results: Sequence[TextResult]) -> str:
    seeds = list(dict.fromkeys(one.seed for result in results for one in result.trained))
    base = listed([f"`{name}`" for name in dict.fromkeys(str(one.recipe["embeddings"]) for one in results)])
    protocol = results[0].evaluation.protocol
    quirks = ", with the quirks of the authors' released code" if _as_released(results) else ""
    special = "special tokens as well" if protocol.get("special") else "special tokens apart"
    made = dict.fromkeys(_made(one) for one in results)
    parts = [
        f"> **{QUICK}**" if _quick(results) else "",
        f"Classifiers of three attention-only blocks on frozen embeddings of {base}{quirks}, trained for each dataset "
        f"with {_seeds_of(seeds)}. Explained is the logit of the "
        f"{value_text(protocol.get('target'))} class; then tokens, {special}, are replaced by the token "
        f"`{value_text(protocol.get('mask'))}` in {value_text(protocol.get('steps'))} steps (protocol "
        f"`{value_text(protocol.get('name'))}`).",
        "Each sample's points are averaged over the classifiers. `[low, high]` is the 95 % interval of a mean, by "
        "bootstrap over samples, given these classifiers; how far the classifiers themselves lie apart is told "
        "[below](#classifiers-differ). Differences are taken on the same samples. "
        f"`{NONE}`: the method does not apply, or there is no number.",
        f"Made with {'; '.join(made)}.",
    ]
    return "\n\n".join(part for part in parts if part)


def _made(one: TextResult) -> str:
    versions = [f"{key} {value}" for key, value in one.provenance.items() if key not in ("device", "quick")]
    device = one.provenance.get("device")
    return ", ".join(versions) + (f", on {device}" if device else "")


# Tables 1 and 2


def _areas(results: Sequence[TextResult], metric: str) -> str:
    best = {one.dataset: best_of(one.evaluation, metric) for one in results}

    def cell(one: TextResult, row: Row) -> str:
        found = row_of(one.evaluation, row.method)
        ours = NONE if found is None else _interval(getattr(found, metric), row.method == best[one.dataset])
        return stacked(ours, _theirs(published(metric, one.dataset, row.method)))

    better = "higher" if HIGHER_IS_BETTER[metric] else "lower"
    used = dict.fromkeys(
        found.source
        for row in ROWS
        for one in results
        if row.group in GROUPS and (found := published(metric, one.dataset, row.method))
    )
    parts = [
        f"{heading(metric)}, {better} is better: mean, its 95 % interval, and the authors' number where there is one. "
        f"Bold: the best mean among the paper's methods. Scores of GI, LRP, exact and AttnLRP are those at the output "
        f"of the embedding block.",
        _by_group(results, cell),
        "\n".join(f"- {SOURCES[source]}: {sources()[source]}" for source in used),
        _refused(results),
    ]
    return "\n\n".join(part for part in parts if part)


def _shares(results: Sequence[TextResult]) -> str:
    def cell(one: TextResult, row: Row) -> str:
        theirs = published_share("au_mse", one.dataset, row.method)
        ours = _number(share_of_random(one.evaluation, "au_mse", row.method))
        return stacked(ours, "" if theirs is None else f"theirs {_number(theirs)}")

    note = (
        "AU-MSE grows with the scale of the logits, so raw numbers of two models cannot be held against each other. "
        "Shares of what a random order gets can:"
    )
    return f"### AU-MSE as a share of Random's\n{note}\n\n{_by_group(results, cell)}"


def _refused(results: Sequence[TextResult]) -> str:
    found = [(one, method, why) for one in results for method, why in one.evaluation.refused.items()]
    return "\n".join(f"- {one.title}: `{method}` does not apply: {why}" for one, method, why in found)


# Who is best


def _verdicts(results: Sequence[TextResult]) -> str:
    titles = ["dataset", "metric", "best", "beats", "level with", "behind"]
    rows = []
    best = dict.fromkeys(METRICS, 0)
    for one in results:
        for metric in METRICS:
            gains = [_gain(one, metric, OURS, rival) for rival in RIVALS]
            if row_of(one.evaluation, OURS) is None:
                words = [NONE] * 4
            else:
                found = verdict(one.evaluation, metric)
                best[metric] += found.best
                words = _words(found)
            rows.append([one.title, TITLES[metric], *words, *gains])
    count = ", ".join(f"by {TITLES[metric]} on {best[metric]} of {len(results)}" for metric in METRICS)
    note = (
        "Best is what beats each of the other methods of the paper, every paired 95 % interval leaving out 0: "
        f"{count}. The last columns: by how much it is better on the same samples, in the metric's own sense, so that "
        "positive is better in both. Bold: the interval leaves out 0."
    )
    return f"{note}\n\n{table([*titles, *(f'over {TITLE_OF[rival]}' for rival in RIVALS)], rows, words=len(titles))}"


def _words(found: Verdict) -> list[str]:
    """Return a verdict's cells: whether it is best, and what it beats, is level with, is behind."""
    beaten = f"all {len(found.beaten)} others" if found.best else _titles(found.beaten)
    return ["**yes**" if found.best else "no", beaten, _titles(found.level), _titles(found.ahead)]


def _titles(names: Sequence[str]) -> str:
    return ", ".join(stacked(name) for name in names) or "none"


def _released(results: Sequence[TextResult]) -> str:
    rows = {f"{row.title}<br>beside {definition_of(row).title}": row for row in ROWS if row.group == "released"}
    parts = [
        "The authors' code computes some methods otherwise than they are defined. Each cell: what the code computes, "
        "what the definition gives, and by how much the code's is better on the same samples (positive is better, in "
        "both metrics). Bold: the interval leaves out 0."
    ]
    for metric in METRICS:

        def cell(one: TextResult, row: Row, metric: str = metric) -> str:
            defined = definition_of(row).method
            code, definition = (row_of(one.evaluation, method) for method in (row.method, defined))
            if code is None or definition is None:
                return NONE
            means = [_number(getattr(found, metric).mean) for found in (code, definition)]
            return stacked(f"code {means[0]}", f"defined {means[1]}", _gain(one, metric, row.method, defined))

        parts.append(f"### {heading(metric)}\n{_by_dataset(results, rows, cell)}")
    return "\n\n".join(parts)


# What else


def _conservation(results: Sequence[TextResult]) -> str:
    def cell(one: TextResult, row: Row) -> str:
        found = row_of(one.evaluation, row.method)
        if found is None:
            return NONE
        books = found.conservation
        numbers = {"corr.": books.correlation, "slope": books.slope, "gap": books.gap}
        return stacked(*(f"{name} {_number(value)}" for name, value in numbers.items()))

    rows = {row.title: row for row in ROWS if row.method in CONSERVING}
    note = (
        "The sum of the scores against the explained output, as in figure 3 of the paper. In each cell: correlation, "
        "slope, and the mean gap |output - sum|; 1, 1 and 0 where scores add up to the output. Biases keep a part of "
        "the output: under exact that is the whole gap."
    )
    shown = picture("conservation.png", "Sums of scores against outputs", conservation_caption(results))
    return f"{note}\n\n{_by_dataset(results, rows, cell)}\n\n{shown}"


def _seeds(results: Sequence[TextResult]) -> str:
    titles = ["dataset", *(TITLE_OF[method] for method in EACH), f"{TITLE_OF[OURS]} above {TITLE_OF[GI]}"]
    rows = []
    for one in results:
        cells = []
        for method in EACH:
            values = [each.auac[method] for each in one.trained if method in each.auac]
            apart = f"± {_number(spread(values))}" if len(values) > 1 else ""
            cells.append(stacked(", ".join(map(_number, values)), apart) if values else NONE)
        below = not_ahead(one.trained, "auac", OURS, GI)
        order = NONE if below is None else f"not on {_seeds_of(below)}" if below else "on every one"
        rows.append([one.title, *cells, order])
    note = (
        "AUAC on each classifier alone, in the order of the seeds; ±: half of the distance between the largest and the "
        "smallest. The last column: on which classifiers the order of the two means holds."
    )
    return f"{note}\n\n{table(titles, rows)}"


def _sentences(results: Sequence[TextResult], names: Sequence[str]) -> str:
    shown = [one for one in results if one.sentences]
    if not shown:
        return ""
    quoted = "; for SST-2 also sentences of its validation split, whatever the classifier says of them"
    quoted = quoted if any(one.dataset == "sst2" for one in shown) else ""
    methods = listed([f"`{name}`" for name in dict.fromkeys(each.method for one in shown for each in one.sentences)])
    note = (
        "As in figure 5 and appendix D of the paper. Of each class the first test text that is short and classified "
        f"rightly, chosen by no eye, so some may offend{quoted}. Explained is the "
        f"logit of the predicted class, on the classifier of seed {shown[0].trained[0].seed}, by {methods}. Red for, "
        "blue against; every explanation has its own scale. With each word's number: [sentences.html](sentences.html)."
    )
    pictures = [
        f"### {one.title}\n{picture(name, f'Sentences of {one.title}')}"
        for one, name in zip(results, names, strict=True)
        if one.sentences
    ]
    return "\n\n".join([note, *pictures])


def _again(results: Sequence[TextResult]) -> str:
    quirks = " --as-released" if _as_released(results) else ""
    return (
        "```sh\n"
        f"conserva reproduce text --device cuda --jobs 8 --out results/text{quirks}\n"
        f"conserva reproduce text --quick --out quick{quirks}    # a small slice of everything, minutes on a CPU\n"
        "```\n"
        "What is done already stays; a run that was stopped goes on where it was. This page is written anew each time: "
        "what is to stay on it belongs into `notes.md` in the same folder."
    )


# Cells and tables


def _quick(results: Sequence[TextResult]) -> bool:
    return any(one.provenance.get("quick") for one in results)


def _as_released(results: Sequence[TextResult]) -> bool:
    return any(one.recipe.get("as_released") for one in results)


def _interval(one: Interval, strong: bool) -> str:
    mean, _, limits = _bare(interval(one)).partition(" ")
    return stacked(f"**{mean}**" if strong else mean, limits)


def _gain(one: TextResult, metric: str, a: str, b: str) -> str:
    """Return by how much a is better than b; bold where that is sure."""
    if row_of(one.evaluation, a) is None or row_of(one.evaluation, b) is None:
        return NONE
    found = advantage(one.evaluation, metric, a, b)
    return _interval(found, found.low > 0 or found.high < 0)


def _theirs(one: Published | None) -> str:
    return "" if one is None else f"{SOURCES[one.source]} {_number(one.value)}"


def _number(value: float | None) -> str:
    return _bare(short(value))


def _seeds_of(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {listed([str(seed) for seed in seeds])}"


def _by_group(results: Sequence[TextResult], cell: Cell) -> str:
    """Return a table with the rows of tables 1 and 2, group by group, and a column for each dataset."""
    lines = []
    for group, title in GROUPS.items():
        lines.append([f"*{title}*", *("" for _ in results)])
        lines += [[row.title, *(cell(one, row) for one in results)] for row in ROWS if row.group == group]
    return table(["method", *(one.title for one in results)], lines)


def _by_dataset(results: Sequence[TextResult], rows: Mapping[str, Row], cell: Cell) -> str:
    """Return a table with a row for each title, and a column for each dataset."""
    lines = [[title, *(cell(one, row) for one in results)] for title, row in rows.items()]
    return table(["method", *(one.title for one in results)], lines)
