"""A trace as a self-contained HTML page: a heat map of layers and features."""

from __future__ import annotations

from .._util.text import displayed
from ..results.trace import Trace
from .components import bar_of
from .rendering import render
from .trace_wording import LOOK_FOR, headline, scale_of, sums_note
from .verdict import verdict
from .wording import ledger_line
from .written_text import spelled

FEW, MANY = 10, 60
"""Up to `FEW` features, the cells show their numbers; with more than `MANY`, they are narrow."""


def page(trace: Trace) -> str:
    """Return an HTML page, whose content security policy forbids loading anything and running scripts."""
    return _rendered("page.html", trace)


def fragment(trace: Trace) -> str:
    """Return a trace as an HTML fragment, for notebooks."""
    return _rendered("fragment.html", trace)


def _rendered(layout: str, trace: Trace) -> str:
    raw, names = trace.explanation(), spelled(trace)
    trace = displayed(trace)
    explanation = trace.explanation()
    rows = [
        (layer, list(zip(names, scores, strict=True)), total)
        for layer, scores, total in zip(trace.layers, trace.scores, trace.sums, strict=True)
    ]
    return render(
        "trace.html",
        layout=layout,
        title=headline(trace),
        verdict=verdict(raw),
        scale=scale_of(trace),
        rows=rows[::-1],
        features=list(zip(names, trace.special, strict=True)),
        size=_size(len(trace.features)),
        look_for=LOOK_FOR,
        sums_note=sums_note(trace),
        bar=bar_of(explanation.ledger, explanation.output, ledger_line(explanation)),
    )


def _size(features: int) -> str:
    """Return the CSS class for the size of cells."""
    return "few" if features <= FEW else "many" if features > MANY else "some"
