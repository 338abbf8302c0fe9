"""A comparison of methods as a self-contained HTML page: one table, with a row for each method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._util.text import displayed
from ..attribution.registry import methods
from ..engine.rules import DEFAULT
from ..results.explanation import Explanation
from ..results.explanations import Comparison
from .colours import scale_of
from .components import LedgerBars, Row, Table, bar_of, plain
from .explanation_parts import Picture, Text, picture_of, shown, text_of
from .ledger_steps import axis_of, ledger_steps
from .rendering import render
from .verdict import agreement, decision
from .wording import is_signed, ledger_line, ledger_notes, outcome


@dataclass(frozen=True)
class MethodRow:
    """A method in the table."""

    method: str
    scale: float
    signed: bool
    text: Text | None
    picture: Picture | None
    ledger: LedgerBars
    correlation: str


def page(comparison: Comparison) -> str:
    """Return an HTML page of a comparison, whose content security policy forbids loading anything and scripts."""
    return _rendered(comparison, "page.html")


def fragment(comparison: Comparison) -> str:
    """Return a comparison as an HTML fragment, for notebooks."""
    return _rendered(comparison, "fragment.html")


def _rendered(comparison: Comparison, layout: str) -> str:
    correlations, known = comparison.correlations(), methods()
    ledgers = [(explanation.ledger, explanation.output) for explanation in comparison if explanation.ledger is not None]
    axis = axis_of([step for ledger, output in ledgers for step in ledger_steps(ledger, output)])
    first = comparison[0] if comparison else None
    names = displayed(comparison.methods)
    reference = names.index(DEFAULT) if DEFAULT in names else 0
    data: dict[str, Any] = {
        "title": "conserva" if first is None else outcome(displayed(first)),
        "verdict": "No method applies." if first is None else _verdict(comparison),
        "about": "" if first is None else outcome(displayed(first)),
        "has_pictures": first is not None and first.picture is not None,
        "signless": ", ".join(displayed(one).method for one in comparison if not is_signed(one)),
        "reference": names[reference] if names else "",
        "rows": [
            _row(explanation, axis, None if i == reference else correlations[reference][i])
            for i, explanation in enumerate(comparison)
        ],
        "notes": ledger_notes([displayed(explanation) for explanation in comparison]),
        "correlations": _matrix(names, correlations) if len(names) > 2 else None,
        "summaries": {one.method: known[name] for one in comparison if (name := one.method.partition(":")[0]) in known},
        "full": map(shown, comparison),
        "refused": displayed(comparison.refused),
    }
    return render("comparison.html", layout=layout, **data)


def _verdict(comparison: Comparison) -> str:
    shared = agreement(list(comparison))
    return f"{decision(comparison[0])}. {shared}." if shared else f"{decision(comparison[0])}."


def _row(explanation: Explanation, axis: tuple[float, float], correlation: float | None) -> MethodRow:
    safe = displayed(explanation)
    scale = scale_of([safe])
    text = text_of(explanation) if safe.picture is None else None
    picture = None if safe.picture is None else picture_of(safe, scale)
    ledger = bar_of(safe.ledger, safe.output, ledger_line(safe), axis=axis)
    return MethodRow(safe.method, scale, is_signed(safe), text, picture, ledger, _rho(correlation))


def _matrix(names: tuple[str, ...], correlations: tuple[tuple[float | None, ...], ...]) -> Table:
    rows = [Row(name, plain(map(_rho, values))) for name, values in zip(names, correlations, strict=True)]
    note = "Spearman's rank correlation of the scores of two methods, without special features."
    return Table(note, plain(["", *names]), rows)


def _rho(correlation: float | None) -> str:
    return "" if correlation is None else f"{correlation:+.2f}"
