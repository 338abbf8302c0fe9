"""shap: explanations as `shap.Explanation`, for its plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from .._util.extras import require
from ..errors import Error
from ..results.explanation import Explanation
from ..results.explanations import Explanations


def of_one(explanation: Explanation) -> Any:
    """Implement `Explanation.to_shap`."""
    require("Explanation.to_shap()", "shap")
    return of_many(Explanations((explanation,)))[0]  # shap's constructor takes no name of an output for a single row


def of_many(explanations: Explanations, by_name: bool = False) -> Any:
    """Implement `Explanations.to_shap`."""
    require("Explanations.to_shap()", "shap")
    if not explanations:
        raise Error("Explanations.to_shap(): there are no explanations.")
    _refuse_unaccounted(explanations)
    columns = _by_name(explanations) if by_name else _by_position(explanations)
    return import_module("shap").Explanation(
        **columns,
        base_values=np.array([_base(one) for one in explanations]),
        output_names=" / ".join(dict.fromkeys(one.target for one in explanations)),
    )


def _refuse_unaccounted(explanations: Sequence[Explanation]) -> None:
    """Raise an `Error` if there is an explanation whose scores are not parts of the output, or one without features."""
    for one in explanations:
        if one.ledger is None:
            raise Error(
                f"method={one.method!r} has no ledger: its scores are not parts of the output, and shap's base value "
                "plus its values is the output. Explain with a method that has a ledger, such as 'exact'."
            )
        if not one.features:
            raise Error(f"The explanation of {one.text[:40]!r} has no features, so there is nothing to convert.")


def _base(explanation: Explanation) -> float:
    """Return the output without the scores: positions, biases and gap, and the scores of features left out."""
    return explanation.output - math.fsum(explanation.scores)


def _by_position(explanations: Explanations) -> dict[str, Any]:
    """Return the scores of each text as a row of its own length, as shap's explainers of texts do."""
    return {
        "values": _rows([np.array(one.scores) for one in explanations]),
        "data": _rows([np.array(_written(one), dtype=object) for one in explanations]),
        "feature_names": [list(one.features) for one in explanations],
    }


def _by_name(explanations: Explanations) -> dict[str, Any]:
    """Return texts x names: the sums of the scores, and how often each name occurs."""
    columns = {name: i for i, name in enumerate(dict.fromkeys(name for one in explanations for name in one.features))}
    values = np.zeros((len(explanations), len(columns)))
    counts = np.zeros_like(values)
    for row, one in enumerate(explanations):
        where = [columns[name] for name in one.features]
        np.add.at(values[row], where, one.scores)
        np.add.at(counts[row], where, 1)
    return {"values": values, "data": counts, "feature_names": list(columns)}


def _rows(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Return an array of arrays, also if all have the same length."""
    array = np.empty(len(rows), dtype=object)
    for i, row in enumerate(rows):
        array[i] = row
    return array


def _written(explanation: Explanation) -> list[str]:
    """Return the characters of each feature with the white space after them, so that shap's text plot joins them.

    Of features that share a character, as the tokens of a byte-level tokenizer may, the first has it.
    """
    text, spans = explanation.text, [*explanation.offsets, None]
    written = []
    last = (0, 0)
    for feature, span, following in zip(explanation.features, spans, spans[1:], strict=False):
        if span is None:
            written.append(f"{feature} ")
            continue
        start = last[1] if last[0] <= span[0] < last[1] else span[0]
        end = len(text) if following is None else max(span[1], following[0])
        between = text[span[1] : end]  # characters without a token may be in it
        space = between[: len(between) - len(between.lstrip())] or (" " if any(map(str.isspace, between)) else "")
        written.append(text[start : span[1]] + space)
        last = span
    return written
