"""The part of the page that says whether the results agree with the paper's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...datasets.catalogue import DATASETS
from ...views.evaluation_wording import TITLES, heading
from ...views.markdown import listed, stacked, table
from ..experiments.agreement import AGREES, DISAGREES, IN_ORDER, OPEN, Agreement, agreements
from ..experiments.published import other_column, utterances
from ..experiments.result import AnyResult
from .cells import METRICS, NONE, difference, number

VERDICTS = {
    AGREES: "the method that is first in the paper surely beats every other one here (all paired intervals)",
    IN_ORDER: "it has the best mean here too, but does not surely beat every other one",
    OPEN: "another method has a better mean here, but none surely beats it",
    DISAGREES: "another method surely beats it here",
}


def agreement(results: Sequence[AnyResult]) -> str:
    """Return a table for each metric with a line for each column, or nothing if the paper has no such column."""
    found = {metric: agreements(results, metric) for metric in METRICS}
    if not any(found.values()):
        return ""
    used = {one.verdict for each in found.values() for one in each}
    parts = [
        counted(results),
        "\n".join(f"- {verdict}: {meaning}." for verdict, meaning in VERDICTS.items() if verdict in used),
        exchange(results),
        "Compared are the methods of the paper's tables; A-Flow is one of them here also where the authors left it "
        "out. Two columns say by how much the method that is first in the paper is ahead of the best other one, there "
        "and here; less than 0: another one is ahead of it. Rank correlation: Kendall's tau-b between the paper's "
        "order of the methods and the one here. Distance: how far the numbers are from the paper's, the mean over "
        "methods; of AU-MSE, of shares of Random's.",
        *(f"### {heading(metric)}\n{_table(each)}" for metric, each in found.items()),
    ]
    return "\n\n".join(part for part in parts if part)


def counted(results: Sequence[AnyResult]) -> str:
    """Return how many columns agree with the column printed for their dataset, for each metric."""
    sentences = []
    for metric in METRICS:
        printed = [one for one in agreements(results, metric) if not one.exchanged]
        counts = Counter(one.verdict for one in printed)
        said = ", ".join(f"{verdict} in {counts[verdict]}" for verdict in VERDICTS if counts[verdict])
        known = sorted(one.correlation for one in printed if one.correlation is not None)
        ends = " to ".join(dict.fromkeys(map(number, known[:1] + known[-1:])))
        ranks = f"; rank correlation {ends}" if known else ""
        count = f"{len(printed)} columns" if len(printed) > 1 else "1 column"
        sentences.append(f"By {TITLES[metric]}, of {count}: {said}{ranks}.")
    return " ".join(sentences)


def exchange(results: Sequence[AnyResult]) -> str:
    """Return a sentence on columns of the paper that may be exchanged, with what both readings come to."""
    found = {
        metric: [one for one in agreements(results, metric) if other_column(one.column.result.dataset)]
        for metric in METRICS
    }
    datasets = {one.column.result.dataset: one.column.result for each in found.values() for one in each}
    if not datasets:
        return ""
    counts = " and ".join(
        f"{utterances(name):,} utterances of {one.title} (the data have {sum(one.samples.values()):,})"
        for name, one in datasets.items()
    )
    readings = [
        f"By {TITLES[metric]}, the mean distance is {_mean(each, 'distance', False)} as printed and "
        f"{_mean(each, 'distance', True)} exchanged, the mean rank correlation {_mean(each, 'correlation', False)} and "
        f"{_mean(each, 'correlation', True)}."
        for metric, each in found.items()
    ]
    both = listed([_title(name) for name in _both(datasets)])
    return (
        f"The paper's text gives {counts}. So its columns of {both} may be exchanged, and both readings are shown. "
        f"{' '.join(readings)}"
    )


def _mean(found: Sequence[Agreement], name: str, exchanged: bool) -> str:
    values = [getattr(one, name) for one in found if one.exchanged is exchanged]
    known = [value for value in values if value is not None]
    return number(sum(known) / len(known)) if known else NONE


def _both(datasets: Mapping[str, AnyResult]) -> list[str]:
    return sorted({name for one in datasets for name in (one, other_column(one)) if name})


def _title(dataset: str) -> str:
    return DATASETS[dataset].title if dataset in DATASETS else dataset


def _table(found: Sequence[Agreement]) -> str:
    masked = any(one.column.mask for one in found)
    names = ["dataset", "masking"] if masked else ["dataset"]
    titles = [
        *names, "verdict", "first in the paper", "first here", "ahead in the paper", "the same method here",
        "rank correlation", "distance",
    ]  # fmt: skip
    return table(titles, [_row(one) for one in found], words=len(names) + 3)


def _row(one: Agreement) -> list[str]:
    title, *mask = one.column.names
    beside = f"beside the paper's {_title(one.theirs)}" if one.exchanged else ""
    return [
        stacked(title, beside),
        *mask,
        f"**{one.verdict}**" if one.verdict == AGREES else one.verdict,
        stacked(one.first),
        stacked(one.best),
        stacked(number(one.lead), f"over {one.second}"),
        f"{difference(one.gain)}<br>{stacked(f'over {one.rival}')}",
        NONE if one.correlation is None else number(one.correlation),
        number(one.distance),
    ]
