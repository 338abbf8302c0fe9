"""Agreement of methods with known evidence, over samples: means with intervals, and differences between methods."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import Error
from ..results.renderers import Renderer
from ..results.result import Stored
from ..results.schema import Count, Share
from .comparison import Compared, Interval, Pair, rows_of_methods
from .evidence_measures import Flags, Scores, average_precision, iou, pointing_game, top1
from .statistics import Bootstrap, Table

MEASURES = {"top1": top1, "pointing_game": pointing_game, "iou": iou, "average_precision": average_precision}
"""Measure -> its function of the scores and the evidence of one sample, in the order in which they are shown."""


@dataclass(frozen=True)
class EvidenceRow:
    """The agreement of one method with the evidence."""

    method: str
    top1: Interval
    pointing_game: Interval
    iou: Interval
    average_precision: Interval
    reference: bool = False
    """Whether the row is a reference, not a method."""


@dataclass(frozen=True)
class Evidence(Stored, Compared[EvidenceRow]):
    """The agreement of methods with known evidence, on the same samples."""

    _schema = "conserva/evidence/1"
    _noun = "agreement with evidence"
    _better = dict.fromkeys(MEASURES, True)

    methods: tuple[EvidenceRow, ...]
    pairs: tuple[Pair, ...]
    samples: Count
    """The number of samples with evidence."""
    without_evidence: Count
    """The number of other samples, which are left out."""
    share: Share
    """The mean share of features that are evidence: what the pointing game has for scores that are all equal."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def show(self) -> None:
        """Print the result to the terminal."""
        Renderer("evidence_terminal:show")(self)


def measure_evidence(
    scores: Mapping[str, Sequence[Scores]],
    evidence: Sequence[Flags],
    *,
    references: Collection[str] = (),
    seed: int = 0,
    provenance: Mapping[str, Any] | None = None,
) -> Evidence:
    """Measure how well the scores of methods agree with known evidence, on the same samples for all methods.

    Parameters
    ----------
    scores
        Method -> for each sample the score of each feature. All orders `random:seed=...` share a row.
    evidence
        For each sample, which features are the evidence. Samples without evidence are left out.
    references
        The methods that are yardsticks, and are not ranked.
    seed
        The seed of the bootstrap.
    provenance
        What the result should tell about its origin.

    Returns
    -------
    Evidence
        Top-1, pointing game, intersection over union and average precision of each method, with 95 % intervals over
        samples, and the differences between methods.

    Examples
    --------
    >>> from conserva.evaluation.evidence import measure_evidence
    >>> found = measure_evidence({"a": [[1.0, 0.0], [0.0, 1.0]], "b": [[0.0, 1.0]] * 2}, [[True, False], [False, True]])
    >>> [(row.method, row.top1.mean) for row in found.ranked("top1")]
    [('a', 1.0), ('b', 0.5)]
    """
    given = list(evidence)
    for method, of_method in scores.items():
        if len(of_method) != len(given):
            raise Error(
                f"scores[{method!r}] has {len(of_method)} samples and evidence {len(given)}: give one for each."
            )
    kept = [i for i, flags in enumerate(given) if np.any(flags)]
    if not scores or not kept:
        raise Error(
            f"{'evidence' if scores else 'scores'} is empty: give one or more methods, and samples with evidence."
        )
    rows = rows_of_methods(list(scores))
    table = Table(len(rows) * len(MEASURES))
    for i in kept:
        measured = {method: _measured(of_method[i], given[i], method, i) for method, of_method in scores.items()}
        table.append(np.concatenate([np.mean([measured[name] for name in names], axis=0) for names in rows.values()]))
    bootstrap = Bootstrap(table, seed)
    where = {row: slice(i * len(MEASURES), (i + 1) * len(MEASURES)) for i, row in enumerate(rows)}
    return Evidence(
        methods=tuple(
            EvidenceRow(
                row, **dict(zip(MEASURES, bootstrap.intervals(columns), strict=True)), reference=row in references
            )
            for row, columns in where.items()
        ),
        pairs=tuple(
            Pair(metric, a, b, interval.mean, interval.low, interval.high)
            for a, b in itertools.combinations(rows, 2)
            for metric, interval in zip(MEASURES, bootstrap.intervals(where[a], where[b]), strict=True)
        ),
        samples=len(kept),
        without_evidence=len(given) - len(kept),
        share=float(np.mean([np.mean(given[i]) for i in kept])),
        provenance=dict(provenance or {}),
    )


def _measured(scores: Scores, evidence: Flags, method: str, sample: int) -> list[float]:
    try:
        return [measure(scores, evidence) for measure in MEASURES.values()]
    except Error as error:
        raise Error(f"Sample {sample + 1}, {method}: {error}") from None
