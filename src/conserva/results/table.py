"""Tables of explanations: a row for each explained input, in columns that every table format has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._util.extras import require
from ..engine.ledger import ENTRIES
from ..errors import Error

if TYPE_CHECKING:
    from .explanation import Explanation

Row = Mapping[str, Any]
"""Column -> value. Lists are lists; what is unknown is None."""


@dataclass(frozen=True)
class Column:
    """A column of a table of explanations."""

    type: str
    """The type of its values: "id", "string", "number", or lists: "strings", "numbers", "flags", "spans"."""
    value: Callable[[Explanation], Any]
    """Returns the value for an explanation."""


def _ledger(entry: str) -> Column:
    return Column("number", lambda explanation: getattr(explanation.ledger, entry, None))


def _prediction(explanation: Explanation) -> str | None:
    """Return the class with the highest output, whatever the target is; None if the outputs are not classes."""
    highest = explanation.classes[0] if explanation.classes else None
    return None if highest is None or highest.probability is None else highest.label


COLUMNS: Mapping[str, Column] = {
    "id": Column("id", lambda explanation: None),
    "text": Column("string", lambda explanation: explanation.text),
    "second": Column("string", lambda explanation: None),
    "target": Column("string", lambda explanation: explanation.target),
    "output": Column("number", lambda explanation: explanation.output),
    "probability": Column("number", lambda explanation: explanation.probability),
    "prediction": Column("string", lambda explanation: _prediction(explanation)),
    "tokens": Column("strings", lambda explanation: list(explanation.features)),
    "scores": Column("numbers", lambda explanation: list(explanation.scores)),
    "offsets": Column("spans", lambda explanation: [span and list(span) for span in explanation.offsets]),
    "special": Column("flags", lambda explanation: list(explanation.special)),
    **{f"ledger_{entry}": _ledger(entry) for entry in ENTRIES},
    "method": Column("string", lambda explanation: explanation.method),
    "model": Column("string", lambda explanation: explanation.model),
    "error": Column("string", lambda explanation: None),
}
"""The columns, in order. `id` identifies an input, by default by the number of its row, counted from 1. `second` is the
second text of a pair, if it is known; `prediction` is the class with the highest output; offsets are indices of `text`,
which for a pair is "first | second". `error` is why an input could not be explained: most others are then empty."""


def row_of(explanation: Explanation, **known: Any) -> Row:
    """Return the row of an explanation; `known` are columns that the explanation does not tell."""
    return {name: column.value(explanation) for name, column in COLUMNS.items()} | known


def failed_row(error: str, **known: Any) -> Row:
    """Return the row of an input that could not be explained."""
    return dict.fromkeys(COLUMNS) | known | {"error": error}


def rows_of(explanations: Iterable[Explanation]) -> Iterable[Row]:
    """Return a row for each explanation."""
    return (row_of(explanation, id=number) for number, explanation in enumerate(explanations, 1))


INTEGERS = ("start", "end", "word")
"""The columns of tables of features that have integers or are empty."""


def data_frame(columns: Mapping[str, Any], what: str) -> Any:
    """Return a pandas DataFrame; `what` needs it, for the error message if pandas is not installed."""
    require(what, "pandas")
    table = import_module("pandas").DataFrame(dict(columns))
    return table.astype({name: "Int64" for name in INTEGERS if name in table})  # integers that may be missing


def feature_columns(explanation: Explanation) -> dict[str, list[Any]]:
    """Return the columns of a table with a row for each feature: all but the scores."""
    return {
        "feature": list(explanation.features),
        "start": [None if span is None else span[0] for span in explanation.offsets],
        "end": [None if span is None else span[1] for span in explanation.offsets],
        "special": list(explanation.special),
        "word": list(explanation.words),
        "section": [name for name, count in explanation.sections for _ in range(count)]
        or [None] * len(explanation.features),
    }


def score_columns(explanation: Explanation) -> dict[str, list[Any]]:
    """Return the columns of a table with a row for each feature: its name, its score, and the rest."""
    columns = feature_columns(explanation)
    return {"feature": columns.pop("feature"), "score": list(explanation.scores), **columns}


def row_columns(explanations: Iterable[Explanation]) -> dict[str, list[Any]]:
    """Return the columns of a table with a row for each explanation."""
    rows = list(rows_of(explanations))
    return {name: [row[name] for row in rows] for name in COLUMNS}


def method_columns(explanations: Sequence[Explanation]) -> dict[str, list[Any]]:
    """Return the columns of a table with a row for each feature, and the scores of each method as a column."""
    _require_same_features(explanations)
    columns = feature_columns(explanations[0]) if explanations else {}
    return {**columns, **{one.method: list(one.scores) for one in explanations}}


def _require_same_features(explanations: Iterable[Explanation]) -> None:
    """Raise an `Error` if explanations have different features, and thus no common rows."""
    if len({explanation.features for explanation in explanations}) > 1:
        raise Error("The explanations of this comparison have different features: make a table of each of them.")
