"""A generation as an interactive HTML page: choosing generated tokens highlights their source tokens."""

from __future__ import annotations

import base64
import hashlib
import itertools
import struct
from collections.abc import Iterator
from typing import Any

from .._util.text import displayed
from ..engine.ledger import ENTRIES, Ledger
from ..results.generation import Generation, Step
from .colours import AGAINST, DARK, FOR, LEDGER_ON_PAGES, LIGHT
from .components import Cell, Row, Table, plain
from .generation_wording import (
    GENERATED,
    HELP,
    HINT,
    NO_LEDGER,
    PROMPT,
    chip_label,
    first_token,
    headline,
    opening,
    shown,
    sink_of,
    strongest,
    verdict,
)
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
        verdict=verdict(generation),
        digest=base64.b64encode(hashlib.sha256(script).digest()).decode(),
        hint=HINT,
        help=HELP,
        blocks=list(_blocks(generation)),
        sources=_sources(generation),
        data=_data(generation),
    )


def _blocks(generation: Generation) -> Iterator[dict[str, Any]]:
    """Yield the blocks of the text: the inputs by their names, or the prompt and the generated text."""
    many = len(generation.features)
    sections = generation.sections or ((PROMPT, generation.start), (GENERATED, many - generation.start))
    first = 0
    for name, count in sections:
        end = first + count
        yield {"name": name, "written": end > generation.start, "runs": list(_runs(generation, first, end))}
        first = end


def _runs(generation: Generation, first: int, end: int) -> Iterator[tuple[list[dict[str, Any]], str]]:
    """Yield runs of tokens; runs of two or more tokens of the template have a label, under which they are folded."""

    def is_template(i: int) -> bool:
        return generation.special[i] and i < generation.start

    for folded, group in itertools.groupby(range(first, end), is_template):
        run = list(group)
        label = chip_label([generation.features[i] for i in run]) if folded and len(run) > 1 else ""
        yield [_piece(generation, i) for i in run], label


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
        "opening": opening(generation),
        "first": sink_of(generation),
        "included": generation.sink is None,
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
        "scores": base64.b64encode(struct.pack(f"<{len(step.scores)}f", *step.scores)).decode(),
        "output": _rounded(step.output, 6),
        "probability": _rounded(step.probability),
        "ledger": _entries(step.ledger),
        "others": [[token, _rounded(probability)] for token, probability in step.others],
    }


def _entries(ledger: Ledger[float] | None) -> list[float] | None:
    return None if ledger is None else [_rounded(getattr(ledger, name), 6) for name in ENTRIES]


def _rounded(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")
