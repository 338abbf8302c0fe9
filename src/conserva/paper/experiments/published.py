"""Numbers that the paper's authors published, each with its source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Published:
    """A number, and where it was read: a key of `sources`."""

    value: float
    source: str


@cache
def _all() -> dict[str, Any]:
    text = (resources.files(__package__) / "published.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def published(metric: str, dataset: str, method: str) -> Published | None:
    """Return the authors' number for a metric, or None; options of the method are ignored."""
    found = _all()[metric].get(_meant(dataset), {}).get(method.partition(":")[0])
    return None if found is None else Published(*found)


def published_accuracy(dataset: str, metric: str = "accuracy") -> float | None:
    """Return the accuracy or the ROC-AUC in the paper, or None."""
    found: float | None = _all()[metric].get(_meant(dataset))
    return found


def utterances(dataset: str) -> int | None:
    """Return how many utterances a dataset has by the paper's text, where the data have another number, or None."""
    found: int | None = _all()["utterances"].get(dataset)
    return found


def other_column(dataset: str) -> str | None:
    """Return the dataset whose column in the paper's tables may be that of this one, or None."""
    found: str | None = _all()["exchanged"].get(dataset)
    return found


def _meant(dataset: str) -> str:
    """Return the name of a dataset in the paper, which does not say how it was split."""
    return str(_all()["same"].get(dataset, dataset))


def sources() -> dict[str, str]:
    """Return the description of each source."""
    return dict(_all()["sources"])
