"""The evaluations of several models of one dataset as one evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import Error
from ...evaluation.journal import NAME, samples_of
from ...evaluation.protocol import PROTOCOLS
from ...evaluation.result import METRICS, Conservation, Evaluation
from ...evaluation.summary import summarise

POINTS = 200
"""How many samples' outputs and sums are kept for the scatter plots."""


def pool(folders: Sequence[Path], evaluations: Sequence[Evaluation], data: str) -> Evaluation:
    """Return the evaluation of the mean over models that were evaluated on the same samples.

    Every sample's points are averaged over the models. Intervals are over samples, given these models.
    """
    first = evaluations[0]
    if any(one.provenance["data"] != first.provenance["data"] for one in evaluations):
        raise Error(f"{folders[0].parent.parent} holds evaluations on different samples: choose another folder.")
    journals = zip(*(samples_of(folder / NAME) for folder in folders), strict=True)
    pooled = ((each[0][0], {"methods": _mean([curves["methods"] for _, curves in each])}) for each in journals)
    settings = {name: first.protocol[name] for name in ("target", "steps")}
    protocol = replace(PROTOCOLS[first.protocol["name"]], **settings)
    methods, pairs, _ = summarise(pooled, protocol, first.provenance["seed"])
    found = [{row.method: row.conservation for row in one.methods} for one in evaluations]
    return replace(
        first,
        methods=tuple(
            replace(one, conservation=_conservation([each[one.method] for each in found])) for one in methods
        ),
        pairs=tuple(pair for pair in pairs if pair.metric in METRICS[:2]),
        accuracy=float(np.mean([one.accuracy for one in evaluations if one.accuracy is not None])),
        model=f"{len(evaluations)} classifiers" if len(evaluations) > 1 else first.model,
        data=data,
    )


def _mean(found: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the mean of one sample's points over models, method by method."""
    return {
        method: {key: np.mean([one[method][key] for one in found], axis=0) for key in found[0][method]}
        for method in found[0]
    }


def _conservation(found: Sequence[Conservation]) -> Conservation:
    """Return the mean over models, with the first points of the first model."""
    return Conservation(
        correlation=_average([one.correlation for one in found]),
        slope=_average([one.slope for one in found]),
        distance=float(np.mean([one.distance for one in found])),
        outputs=found[0].outputs[:POINTS],
        sums=found[0].sums[:POINTS],
    )


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None
