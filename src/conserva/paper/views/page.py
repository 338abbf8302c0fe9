"""The results of an experiment as a page in Markdown: every number on it is read from the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..._util.text import printable
from ...evaluation.result import HIGHER_IS_BETTER
from ...views.evaluation_wording import TITLES, heading
from ...views.markdown import escaped, listed, picture, stacked, table
from ..experiments.findings import TableColumn, columns, definition_of, published_share, short_name
from ..experiments.published import other_column, published, sources
from ..experiments.result import AnyResult
from ..experiments.rows import OURS, Row, method_of
from .agreement import agreement
from .cells import METRICS, NONE, difference, mean_and_interval, number, seeds_of, size
from .models import models, trainings_tried
from .panels import conservation_caption, curves_caption
from .wording import wording_of

PAGE, CURVES, CONSERVATION = "README.md", "curves.png", "conservation.png"
AGREEMENT = "Does it agree with the paper?"
QUICK = "A quick run on a small slice: the numbers mean nothing."

GROUPS = {
    "paper": "the paper's methods",
    "slides": "in the authors' slides",
    "more": "other methods",
    "yardstick": "yardsticks",
}
"""The groups of tables 1 and 2, and what they are called."""

SOURCES = {"table": "paper", "notebook": "notebook", "slides": "slides"}
"""What the sources of the authors' numbers are called in a cell."""

RIVALS = ("GI", "LRP (AH)", "LRP (LN)", "GAE")
EACH = ("Random", "A-Last", "GAE", "GI", OURS, "exact")

Cell = Callable[[TableColumn, Row], str]
Theirs = Callable[[str, Row], tuple[str, float] | None]
"""Returns what the authors' number of a row is called, and the number, in their column of a dataset."""


def page(results: Sequence[AnyResult], notes: str = "", tried: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the whole page.

    Parameters
    ----------
    results
        The results of one experiment.
    notes
        Text in Markdown that is put on the page.
    tried
        Trainings with other settings.
    """
    pictures = [wording_of(results).examples_picture(one) for one in results]
    results, tried, notes = escaped(results), escaped(tried), printable(notes, keep="\n\t")
    sections = {
        AGREEMENT: agreement(results),
        "Models": "\n\n".join(part for part in (models(results), trainings_tried(results, tried)) if part),
        "Notes": notes.strip(),
        "Table 1: AUAC": _areas(results, "auac"),
        "Table 2: AU-MSE": "\n\n".join((_areas(results, "au_mse"), _shares(results))),
        f"Is {OURS} best among the paper's methods?": _verdicts(results),
        "What the released code does differently": _released(results),
        "Models differ": _seeds(results),
        "Where relevance goes": _conservation(results),
        "Curves": picture(CURVES, "Activation and pruning curves of every dataset", curves_caption(results)),
        "Examples": _examples(results, pictures),
        "How to run it again": _again(results),
    }
    body = "\n\n".join(f"## {title}\n{text}" for title, text in sections.items() if text)
    return f"# Tables 1 and 2 of Ali et al. (2022), {wording_of(results).name}\n\n{_start(results)}\n\n{body}\n"


def is_quick(results: Sequence[AnyResult]) -> bool:
    """Return whether the results are of a quick run."""
    return any(one.provenance.get("quick") for one in results)


def _start(results: Sequence[AnyResult]) -> str:
    made = dict.fromkeys(map(_made, results))
    parts = [
        f"> **{QUICK}**" if is_quick(results) else "",
        *wording_of(results).start(results),
        "Each sample's points are averaged over the models. `[low, high]` is the 95 % interval of a mean, by bootstrap "
        "over samples, given these models; how much the models differ is shown [below](#models-differ). Differences "
        f"are between methods on the same samples. `{NONE}`: the method does not apply, or was not measured.",
        f"Made with {'; '.join(made)}.",
    ]
    return "\n\n".join(part for part in parts if part)


def _made(one: AnyResult) -> str:
    versions = [f"{key} {value}" for key, value in one.provenance.items() if key not in ("device", "quick")]
    device = one.provenance.get("device")
    return ", ".join(versions) + (f", on {device}" if device else "")


# Tables 1 and 2


def _areas(results: Sequence[AnyResult], metric: str) -> str:
    best = {one.title: one.best(metric) for one in columns(results)}

    def cell(one: TableColumn, row: Row) -> str:
        found = one.row(row.title)
        return mean_and_interval(None if found is None else getattr(found, metric), row.title == best[one.title])

    def theirs(dataset: str, row: Row) -> tuple[str, float] | None:
        found = published(metric, dataset, row.method)
        return None if found is None else (SOURCES[found.source], found.value)

    better = "higher" if HIGHER_IS_BETTER[metric] else "lower"
    used = dict.fromkeys(
        found.source
        for row in results[0].rows
        for one in results
        if row.group in GROUPS and (found := published(metric, one.dataset, row.method))
    )
    signs = (
        "Features with small |scores| are removed first. So methods without a sign remove evidence against the class "
        "first and signed methods remove it last: AU-MSE does not measure the two kinds alike."
    )
    parts = [
        f"{heading(metric)}, {better} is better: mean, its 95 % interval, and the authors' number where there is one. "
        "Bold: the best mean among the paper's methods.",
        signs if metric == "au_mse" else "",
        _by_group(results, cell, theirs),
        "\n".join([*(f"- {SOURCES[source]}: {sources()[source]}" for source in used), *_exchanged(results)]),
        _refused(results),
    ]
    return "\n\n".join(part for part in parts if part)


def _exchanged(results: Sequence[AnyResult]) -> list[str]:
    """Return what the second of two numbers of the authors is."""
    found = [one.title for one in results if other_column(one.dataset)]
    return [f"- or: the number in another column, with which that of {listed(found)} may be exchanged"] if found else []


def _shares(results: Sequence[AnyResult]) -> str:
    def cell(one: TableColumn, row: Row) -> str:
        return number(one.share_of_random("au_mse", row.title))

    def theirs(dataset: str, row: Row) -> tuple[str, float] | None:
        found = published_share("au_mse", dataset, row.method)
        return None if found is None else ("theirs", found)

    note = (
        "AU-MSE grows with the scale of the logits and with their number, so raw numbers of two models cannot be "
        "compared. Shares of the AU-MSE of a random order can:"
    )
    return f"### AU-MSE as a share of Random's\n{note}\n\n{_by_group(results, cell, theirs)}"


def _refused(results: Sequence[AnyResult]) -> str:
    found = [(one, *why) for one in columns(results) for why in one.evaluation.refused.items()]
    return "\n".join(f"- {one.title}: `{method}` does not apply: {why}" for one, method, why in found)


def _by_group(results: Sequence[AnyResult], cell: Cell, theirs: Theirs) -> str:
    """Return a table of the methods, group by group, with a column for each dataset.

    A dataset with several maskings has a column for each, and one for the authors' number, whose masking is not known.
    """
    lines = []
    for group, title in GROUPS.items():
        rows = [
            row for row in results[0].rows if row.group == group and any(one.row(row.title) for one in columns(results))
        ]
        if rows:
            lines.append([f"*{title}*"])
        lines += [[row.title, *(part for one in results for part in _cells(one, row, cell, theirs))] for row in rows]
    titles = ["method", *(title for one in results for title in _titles(one))]
    return table(titles, [[*line, *("" for _ in titles[len(line) :])] for line in lines])


def _titles(result: AnyResult) -> list[str]:
    found = columns([result])
    if not found[0].mask:
        return [result.title]
    return [stacked(short_name(result), part) for part in (*(one.mask for one in found), "the paper")]


def _cells(result: AnyResult, row: Row, cell: Cell, theirs: Theirs) -> list[str]:
    found = columns([result])
    cells, their = [cell(one, row) for one in found], theirs(result.dataset, row)
    if found[0].mask:
        return [*cells, NONE if their is None else number(their[1])]
    other = other_column(result.dataset)
    exchanged = None if other is None else theirs(other, row)
    return [
        stacked(
            cells[0],
            "" if their is None else f"{their[0]} {number(their[1])}",
            "" if exchanged is None else f"or {number(exchanged[1])}",
        )
    ]


# Comparisons


def _verdicts(results: Sequence[AnyResult]) -> str:
    every = columns(results)
    titles = [*_names(every), "metric", "best", "beats", "level with", "behind"]
    rows = []
    for one in every:
        for metric in METRICS:
            found = one.verdict(metric)
            words = [NONE] * 4
            if found is not None:
                beaten = f"all {len(found.beaten)} others" if found.best else _listed(found.beaten)
                words = ["**yes**" if found.best else "no", beaten, _listed(found.level), _listed(found.ahead)]
            gains = [difference(one.gain(metric, OURS, rival)) for rival in RIVALS]
            rows.append([*one.names, TITLES[metric], *words, *gains])
    counts = (
        f"by {TITLES[metric]} in {sum(one.is_best(metric) for one in every)} of {len(every)}" for metric in METRICS
    )
    note = (
        "It is best where it beats each of the paper's other methods, every paired 95 % interval excluding 0: "
        f"{', '.join(counts)}. The last columns: by how much it is better on the same samples; positive is better in "
        "both metrics. Bold: the interval excludes 0."
    )
    return f"{note}\n\n{table([*titles, *(f'over {rival}' for rival in RIVALS)], rows, words=len(titles))}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(stacked(name) for name in names) or "none"


def _names(every: Sequence[TableColumn]) -> list[str]:
    return ["dataset", "masking"] if every[0].mask else ["dataset"]


def _released(results: Sequence[AnyResult]) -> str:
    every = columns(results)
    variants = [row for row in results[0].rows if row.group == "released"]
    pairs = [(row.title, definition_of(row, results[0].rows).title) for row in variants]
    if not pairs:
        return ""

    def cell(one: TableColumn, metric: str, code: str, defined: str) -> str:
        gain = one.gain(metric, code, defined)
        if gain is None:
            return NONE
        means = [number(one.mean(metric, title)) for title in (code, defined)]
        return stacked(f"code {means[0]}", f"defined {means[1]}", difference(gain))

    parts = [
        "The authors' code computes some methods differently from their definition. Each cell: the number of the code, "
        "that of the definition, and by how much the code's is better on the same samples (positive is better, in "
        "both metrics). Bold: the interval excludes 0."
    ]
    for metric in METRICS:
        rows = [
            [f"{code}<br>beside {defined}", *(cell(one, metric, code, defined) for one in every)]
            for code, defined in pairs
        ]
        parts.append(f"### {heading(metric)}\n{table(['method', *(one.title for one in every)], rows)}")
    return "\n\n".join(parts)


def _seeds(results: Sequence[AnyResult]) -> str:
    every = columns(results)
    titles = [*_names(every), *EACH, f"{OURS} better than GI"]
    parts = [
        "Each model alone, in the order of the seeds; ±: half of the distance between the largest and the smallest. "
        "The last column: on which models the order of the two means holds."
    ]
    for metric in METRICS:
        rows = []
        for one in every:
            behind = one.seeds_behind(metric, OURS, "GI")
            holds = NONE if behind is None else f"not on {seeds_of(behind)}" if behind else "on every one"
            rows.append([*one.names, *(_of_each_model(one, metric, title) for title in EACH), holds])
        parts.append(f"### {heading(metric)}\n{table(titles, rows, words=len(every[0].names))}")
    return "\n\n".join(parts)


def _of_each_model(one: TableColumn, metric: str, title: str) -> str:
    method = method_of(one.result.rows, title)
    found = [model.means(metric, one.mask) for model in one.result.trained]
    values = [means[method] for means in found if method in means]
    if not values:
        return NONE
    spread = f"± {number((max(values) - min(values)) / 2)}" if len(values) > 1 else ""
    return stacked(", ".join(map(number, values)), spread)


# Where relevance goes, and examples


def _conservation(results: Sequence[AnyResult]) -> str:
    found = [(one.title, rules, entries) for one in results for rules, entries in one.ledgers().items()]
    parts = [wording_of(results).conservation]
    if found:
        titles = ["dataset", "rules", *(name.replace("|", "\\|") for name in found[0][2])]
        rows = [[title, rules, *map(size, entries.values())] for title, rules, entries in found]
        parts.append(table(titles, rows, words=2))
    parts.append(picture(CONSERVATION, "Sums of scores against outputs", conservation_caption(results)))
    return "\n\n".join(parts)


def _examples(results: Sequence[AnyResult], names: Sequence[str]) -> str:
    shown = [(one, name) for one, name in zip(results, names, strict=True) if one.examples]
    if not shown:
        return ""
    methods = listed([f"`{name}`" for name in dict.fromkeys(each.method for one, _ in shown for each in one.examples)])
    words = wording_of(results)
    note = (
        f"{words.chosen}, on the model of seed {shown[0][0].trained[0].seed}, by {methods}. Red for, blue against; "
        f"every picture has its own scale. With all numbers: [{words.examples_page}]({words.examples_page})."
    )
    pictures = [f"### {one.title}\n{picture(name, f'Examples of {one.title}')}" for one, name in shown]
    return "\n\n".join([note, *pictures])


def _again(results: Sequence[AnyResult]) -> str:
    words = wording_of(results)
    command, options = f"conserva reproduce {words.command}", words.options(results)
    return (
        "```sh\n"
        f"{command} --device cuda --jobs 8 --out results/{words.command}{options}\n"
        f"{command} --quick --out quick{options}    # a small slice of everything, minutes on a CPU\n"
        "```\n"
        "What is done already is not done again, and a run that was stopped continues. This page is written anew each "
        "time: text that is to stay on it belongs into `notes.md` in the same folder."
    )
