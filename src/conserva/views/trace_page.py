"""A trace as a page that needs nothing from outside: a heat map of layers by features."""

from __future__ import annotations

from .._util.text import displayed
from ..results.trace import Trace
from .components import bar_of
from .rendering import render
from .trace_wording import headline, reading, scale_of
from .wording import ledger_line

WIDE = 60
"""With more features than this the cells are narrow."""


def page(trace: Trace) -> str:
    """Return a whole page. Its policy forbids it to load or run anything."""
    return _rendered("page.html", trace)


def fragment(trace: Trace) -> str:
    """Return the part of a page that shows a trace, as notebooks take it."""
    return _rendered("fragment.html", trace)


def _rendered(layout: str, trace: Trace) -> str:
    trace = displayed(trace)
    one = trace.explanation()
    rows = [
        (layer, list(zip(trace.features, scores, strict=True)), total)
        for layer, scores, total in zip(trace.layers, trace.scores, trace.sums, strict=True)
    ]
    return render(
        "trace.html",
        layout=layout,
        title=headline(trace),
        scale=scale_of(trace),
        rows=rows[::-1],
        features=list(zip(trace.features, trace.special, strict=True)),
        narrow=len(trace.features) > WIDE,
        reading=reading(trace),
        bar=bar_of(one.ledger, one.output, ledger_line(one)),
    )
