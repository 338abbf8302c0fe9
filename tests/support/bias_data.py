"""What tests share: bias data."""

from __future__ import annotations

import json

import pytest

import conserva
from conserva import BiasStudy

GROUPS = {
    "directors": ["Eastwood", "Clint Eastwood", "Sofia Coppola", "Kurosawa"],
    "actors": ["Meryl Streep", "Denzel", "Will"],
}


TEXTS = [
    "has a lot of the virtues of eastwood at his best .",
    "dull",
    "clint eastwood's film is a bore , and eastwood knows it .",
    "kurosawa would have wept .",
    "meryl streep is a joy , denzel is not .",
    "it will be forgotten .",
    "sofia coppola and meryl streep , together at last .",
    "denzel saves what can be saved .",
]


LABELS = [1, 0, 0, 0, 1, 0, 1, 1]


@pytest.fixture(scope="module")
def task() -> conserva.Text:
    return conserva.load()


@pytest.fixture(scope="module")
def study(task: conserva.Text) -> BiasStudy:
    return conserva.bias(task, list(zip(TEXTS, LABELS, strict=True)), GROUPS)


def known(study: BiasStudy) -> dict:
    """Return all of a study but what it is called, and the batches it was made in."""
    found = json.loads(study.to_json())
    return {key: value for key, value in found.items() if key not in ("data", "provenance")}
