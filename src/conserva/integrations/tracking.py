"""What experiment trackers log of a result: its page, its figure, its table and its metrics."""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from ..auditing.result import Audit
from ..bias_study.result import BiasStudy
from ..engine.ledger import ENTRIES, Ledger
from ..errors import Error
from ..evaluation.comparison import Interval
from ..evaluation.result import ADDITIONAL, Evaluation
from ..results.explanation import Explanation
from ..results.explanations import Comparison, Explanations
from ..results.generation import Generation
from ..results.renderers import RENDERERS
from ..results.result import Result
from ..results.table import method_columns, row_columns, score_columns
from ..results.trace import Trace

Columns = Mapping[str, Sequence[Any]]
"""A table: column -> values."""

Values = Mapping[str, float | None]


@dataclass(frozen=True)
class Tracked:
    """The parts of a result that are logged."""

    page: str
    """The HTML page."""
    figure: bytes | None
    """The picture as a PNG file; None if the result has none, or if matplotlib is not installed."""
    table: Columns
    """The table: column -> values."""
    metrics: Mapping[str, float]
    """The numbers by name."""

    @property
    def rows(self) -> list[list[Any]]:
        """The rows of the table."""
        return [list(row) for row in zip(*self.table.values(), strict=True)]


def tracked(result: Any) -> Tracked:
    """Return what is logged of a result. Raise an `Error` for other objects."""
    kind = _KINDS.get(type(result))
    if kind is None:
        *others, last = (each.__name__ for each in _KINDS)
        raise Error(f"result is of type {type(result).__name__}: give an {', '.join(others)} or {last} of conserva.")
    metrics = {name: float(value) for name, value in kind.metrics(result).items() if value is not None}
    return Tracked(RENDERERS[type(result).__name__]["page"](result), _figure(result), kind.table(result), metrics)


def name_of(result: Result, given: str | None) -> str:
    """Return the name that a result is logged under: the given one, or that of its schema, such as "bias-study"."""
    if given is None:
        return result._schema.split("/")[1]
    if not isinstance(given, str) or not given.strip("/ ") or {"", ".", ".."} & set(given.split("/")):
        raise Error(f"name={given!r}: give a name such as 'explanation' or 'reviews/first', or None.")
    return given


def step_of(given: Any) -> int | None:
    """Return a step as an integer; None stays None."""
    try:
        return None if given is None else operator.index(given)
    except TypeError:
        raise Error(f"step={given!r}: give an integer, or None.") from None


def _figure(result: Result) -> bytes | None:
    if "picture" not in RENDERERS[type(result).__name__] or find_spec("matplotlib") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        return result.save(Path(folder) / "figure.png").read_bytes()


def _explanation_metrics(one: Explanation) -> Values:
    """Return the output, its probability, the ledger and the share of its gap."""
    return {"output": one.output, "probability": one.probability, **_ledger_metrics(one.ledger)}


def _ledger_metrics(ledger: Ledger[float] | None) -> Values:
    if ledger is None:
        return {}
    return {**{entry: getattr(ledger, entry) for entry in ENTRIES}, "gap_share": ledger.gap_share}


def _many_metrics(many: Iterable[Explanation]) -> Values:
    """Return the number of explanations, means of their outputs and probabilities, and the largest share of a gap."""
    every = list(many)
    return {
        "explanations": len(every),
        "mean_output": _mean(one.output for one in every),
        "mean_probability": _mean(one.probability for one in every if one.probability is not None),
        "largest_gap_share": max((one.ledger.gap_share for one in every if one.ledger is not None), default=None),
    }


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _comparison_metrics(comparison: Comparison) -> Values:
    return {f"{one.method}/{name}": value for one in comparison for name, value in _explanation_metrics(one).items()}


def _steps(generation: Generation) -> list[Explanation]:
    """Return the explanation of each generated token."""
    return [generation.row(i) for i in range(len(generation.steps))]


def _trace_table(trace: Trace) -> Columns:
    """Return a row for each feature, with its relevance at the output of each layer."""
    features: Columns = {"feature": list(trace.features), "special": list(trace.special), "word": list(trace.words)}
    return {**features, **dict(zip(trace.layers, map(list, trace.scores), strict=True))}


def _evaluation_metrics(evaluation: Evaluation) -> Values:
    """Return every metric of every method, and how the sums of its scores relate to the output."""
    numbers: dict[str, float | None] = {"samples": evaluation.samples, "accuracy": evaluation.accuracy}
    for row in _method_rows(evaluation):
        numbers |= {f"{row['method']}/{name}": value for name, value in _numbers(row).items()}
    return numbers


def _method_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return a row for each method: its metrics with their intervals, and how its sums relate to the output."""
    return [
        {
            **{name: value for name, value in _flat(result).items() if name not in ADDITIONAL or value is not None},
            "sum_correlation": result.conservation.correlation,
            "sum_slope": result.conservation.slope,
            "distance_from_output": result.conservation.distance,
        }
        for result in evaluation.methods
    ]


def _audit_metrics(audit: Audit) -> Values:
    """Return the means over samples, and the largest share of a gap."""
    ledger = {**_ledger_metrics(audit.ledger), "gap_share": audit.gap_share()}
    return {"samples": audit.samples, "output": audit.output, **ledger}


def _bias_metrics(study: BiasStudy) -> Values:
    """Return the numbers of each group, and of each difference of two groups."""
    numbers: dict[str, float | None] = {"texts": study.texts, "mentions": len(study.mentions)}
    named = {group.name: group for group in study.groups} | {f"{pair.a} - {pair.b}": pair for pair in study.differences}
    for name, record in named.items():
        numbers |= {f"{name}/{key}": value for key, value in _numbers(_flat(record)).items()}
    return numbers


def _flat(record: Any) -> dict[str, Any]:
    """Return the numbers and strings of a dataclass by name; of an interval `x` its mean, `x_low` and `x_high`."""
    values: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Interval):
            values |= {field.name: value.mean, f"{field.name}_low": value.low, f"{field.name}_high": value.high}
        elif value is None or isinstance(value, (str, float, int)):
            values[field.name] = value
    return values


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row, without the ends of intervals."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, (float, int)) and name != "reference" and not name.endswith(("_low", "_high"))
    }


def _columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


@dataclass(frozen=True)
class _Kind:
    """The functions that return the metrics and the table of a class of results."""

    metrics: Callable[[Any], Values]
    table: Callable[[Any], Columns]


_KINDS: Mapping[type, _Kind] = {
    Explanation: _Kind(_explanation_metrics, score_columns),
    Explanations: _Kind(_many_metrics, row_columns),
    Comparison: _Kind(_comparison_metrics, method_columns),
    Generation: _Kind(lambda result: _many_metrics(_steps(result)), lambda result: row_columns(_steps(result))),
    Trace: _Kind(lambda result: _explanation_metrics(result.explanation()), _trace_table),
    Evaluation: _Kind(_evaluation_metrics, lambda result: _columns(_method_rows(result))),
    Audit: _Kind(_audit_metrics, lambda result: _columns([_flat(each) for each in result.components])),
    BiasStudy: _Kind(_bias_metrics, lambda result: _columns([_flat(each) for each in result.entities])),
}
"""The classes of results -> how they are logged."""
