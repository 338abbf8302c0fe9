"""The authors' numbers are those that are printed: all of them, and no other."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from conserva.datasets import DATASETS
from conserva.datasets.graph_catalogue import GRAPH_DATASETS
from conserva.paper.experiments.published import Published, _all, other_column, published, utterances
from conserva.paper.experiments.rows import GRAPH_ROWS, OURS, TEXT_ROWS
from markdown_tables import section, tables

PRINTED = (Path(__file__).parent / "printed_tables.md").read_text(encoding="utf-8")
COLUMNS = {
    **{one.title: name for name, one in DATASETS.items()},
    "BACE": "bace",
    "MNIST": "mnist",
}
METHODS = {row.title.replace(" ", ""): row.method for row in TEXT_ROWS}
SPLITS = ("train", "validation", "test")
METRICS = pytest.mark.parametrize(("metric", "title"), [("auac", "AUAC"), ("au_mse", "AU-MSE")])


def printed(title: str) -> dict[tuple[str, str], str]:
    """Return dataset and method -> the number as printed, of a table."""
    return {
        (COLUMNS[column], row["method"]): value
        for row in tables(section(PRINTED, title))[0]
        for column, value in row.items()
        if column != "method" and value != "-"
    }


def as_printed(found: Published, value: str) -> str:
    """Return a number with as many decimals as `value`; the notebook's have more, and the paper cuts them."""
    decimals = len(value.partition(".")[2])
    if found.source == "notebook":
        return f"{math.floor(found.value * 10**decimals + 1e-9) / 10**decimals:.{decimals}f}"
    return f"{found.value:.{decimals}f}"


@METRICS
def test_every_printed_number_is_stored(metric: str, title: str) -> None:
    cells = printed(title)
    assert {name for name, _ in cells} == {"bace", "mnist", *DATASETS}
    for (dataset, method), value in cells.items():
        found = published(metric, dataset, METHODS[method])
        assert found is not None
        assert as_printed(found, value).lstrip("0") == value.lstrip("0")
        assert (found.source == "slides") == (method == "LRP(LN)")


@METRICS
def test_no_other_number_is_stored(metric: str, title: str) -> None:
    names = {title: method.partition(":")[0] for title, method in METHODS.items()}
    cells = {(dataset, names[method]) for dataset, method in printed(title)}
    assert cells == {(dataset, method) for dataset, methods in _all()[metric].items() for method in methods}


@METRICS
@pytest.mark.parametrize("dataset", [*DATASETS, "bace", "mnist"])
def test_the_papers_own_method_is_first_in_every_column(metric: str, title: str, dataset: str) -> None:
    sign = 1 if metric == "auac" else -1
    values = {method: sign * float(value) for (name, method), value in printed(title).items() if name == dataset}
    assert max(values, key=lambda method: values[method]) == OURS.replace(" ", "")


def test_random_splits_are_read_as_their_dataset_and_rows_have_the_same_numbers() -> None:
    assert published("auac", "bace-random", "ln") == published("auac", "bace", "ln") == Published(0.702, "slides")
    assert {row.title: row.group for row in GRAPH_ROWS}["LRP (LN)"] == "slides"
    assert set(_all()["same"]) <= set(GRAPH_DATASETS)


def test_columns_that_may_be_exchanged_have_each_others_number_of_utterances() -> None:
    """The number of utterances that the paper gives one is that of the other's data."""
    for name in ("meld-s", "semaine"):
        other = other_column(name)
        assert other is not None
        assert other_column(other) == name
        assert utterances(name) == sum(sum(getattr(DATASETS[other], split).counts) for split in SPLITS)
    assert other_column("sst2") is utterances("sst2") is None
