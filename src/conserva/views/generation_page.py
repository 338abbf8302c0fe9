"""A generation as an interactive HTML page: pointing at a generated token highlights its source tokens."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

from .._util.text import displayed
from ..engine.ledger import ENTRIES, Ledger
from ..results.generation import Generation, Step
from .colours import AGAINST, DARK, FOR, LEDGER_ON_PAGES, LIGHT
from .components import Cell, Row, Table, plain
from .generation_wording import NO_LEDGER, first_token, headline, shown, strongest
from .rendering import asset, render
from .wording import number

DIGITS = 4
"""Significant digits of the scores in the page's data; more would only make the file larger."""


def page(generation: Generation) -> str:
    """Return a self-contained HTML page, whose content security policy allows its own script only."""
    generation = displayed(generation)
    script = asset("generation.js").encode()
    return render(
        "generation.html",
        title=headline(generation),
        digest=base64.b64encode(hashlib.sha256(script).digest()).decode(),
        inputs=list(_inputs(generation)),
        sources=_sources(generation),
        data=_data(generation),
    )


def _inputs(generation: Generation) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the name and the pieces of each input; the name of a single input is empty."""
    first = 0
    for name, count in generation.sections or (("", len(generation.features)),):
        yield name, [_piece(generation, i) for i in range(first, first + count)]
        first += count


def _piece(generation: Generation, i: int) -> dict[str, Any]:
    kinds = {"special": generation.special[i], "written": i >= generation.start}
    return {"i": i, "text": generation.features[i], **kinds}


def _sources(generation: Generation) -> Table:
    titles = ["token", "probability", generation.score, "strongest sources", "first token", "gap"]
    return Table("", plain(titles), [_row(generation, step) for step in generation.steps])


def _row(generation: Generation, step: Step) -> Row:
    sources = ", ".join(f"{shown(name)} {number(score)}" for name, score in strongest(generation, step))
    gap = "" if step.ledger is None else number(step.ledger.gap)
    cells = [
        Cell(f"{step.probability:.1%}", kind="number"),
        Cell(number(step.output), kind="number"),
        Cell(sources, kind="sources"),
        Cell(first_token(generation, step), kind="number"),
        Cell(gap, kind="number"),
    ]
    return Row(shown(step.token), cells)


def _data(generation: Generation) -> dict[str, Any]:
    """Return the data of the page's script."""
    return {
        "features": generation.features,
        "start": generation.start,
        "score": generation.score,
        "steps": [_step(step) for step in generation.steps],
        "entries": ENTRIES,
        "ledger": LEDGER_ON_PAGES,
        "no_ledger": NO_LEDGER,
        "for": FOR,
        "against": AGAINST,
        "light": LIGHT,
        "dark": DARK,
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "scores": [_rounded(score) for score in step.scores],
        "output": _rounded(step.output, 6),
        "probability": _rounded(step.probability),
        "ledger": _entries(step.ledger),
        "others": [[token, _rounded(probability)] for token, probability in step.others],
    }


def _entries(ledger: Ledger[float] | None) -> list[float] | None:
    return None if ledger is None else [_rounded(getattr(ledger, name), 6) for name in ENTRIES]


def _rounded(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")
