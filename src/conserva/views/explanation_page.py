"""Explanations as a self-contained HTML page: a few in full, many as a list that can be searched and sorted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from .._util.text import displayed, printable
from ..results.explanation import Explanation
from .explanation_parts import FEW, Shown, provenance_of, shown
from .rendering import render_parts
from .wording import caption, gap_note, number

MOST_IN_FULL = 5
"""With more explanations than this, a page is a list, in which each opens."""

MOST_IN_NOTEBOOKS = 50
"""The number of explanations that a notebook shows."""


@dataclass(frozen=True)
class Listed:
    """An explanation in a list."""

    text: str
    target: str
    probability: float | None
    output: str
    gap: str
    """The ledger's gap if it is large."""
    model: str
    """The model, if the list is of several: such as one at several steps of its training."""
    keys: dict[str, str]
    """The data attributes by which a script sorts and filters."""
    full: Shown


def page(explanations: Iterable[Explanation]) -> str:
    """Return an HTML page of explanations."""
    return "".join(page_parts(explanations))


def page_parts(explanations: Iterable[Explanation]) -> Iterator[str]:
    """Yield the page in parts, consuming the explanations lazily: they need not fit in memory.

    Its content security policy forbids loading anything, and running any script but that of the list.
    """
    rest = iter(explanations)
    first = list(islice(rest, MOST_IN_FULL + 1))
    title = caption(displayed(first[0])) if first else "conserva"
    if len(first) <= MOST_IN_FULL:
        yield from render_parts("explanations.html", layout="page.html", title=title, explanations=map(shown, first))
        return
    title = f"Explanations of {printable(first[0].model)}" if _of_one_model(first) else "Explanations"
    yield from render_parts(
        "explanation_list.html",
        layout="page.html",
        title=title,
        noun="texts" if first[0].picture is None else "inputs",
        rows=_rows(chain(first, rest), first),
        provenance=provenance_of(first[0]),
        left_out=0,
    )


def fragment(explanations: Iterable[Explanation]) -> str:
    """Return explanations as an HTML fragment, for notebooks."""
    explanations = list(explanations)
    if len(explanations) <= MOST_IN_FULL:
        data = {"explanations": map(shown, explanations)}
        return "".join(render_parts("explanations.html", layout="fragment.html", **data))
    parts = render_parts(
        "explanation_list.html",
        layout="fragment.html",
        noun="texts" if explanations[0].picture is None else "inputs",
        rows=_rows(explanations[:MOST_IN_NOTEBOOKS], explanations),
        provenance=provenance_of(explanations[0]),
        left_out=max(0, len(explanations) - MOST_IN_NOTEBOOKS),
    )
    return "".join(parts)


def _of_one_model(explanations: Sequence[Explanation]) -> bool:
    return len({explanation.model for explanation in explanations}) == 1


def _rows(explanations: Iterable[Explanation], known: Sequence[Explanation]) -> Iterator[Listed]:
    """Yield explanations as rows; a provenance that equals the first one's is shown below the list.

    Parameters
    ----------
    explanations
        All of them.
    known
        The first of them, by which it is decided whether rows name their model. A row of another one does anyway.
    """
    model = known[0].model if _of_one_model(known) else None
    for explanation in explanations:
        full = shown(explanation, FEW)
        same = explanation.provenance == known[0].provenance
        yield _listed(explanation, replace(full, provenance={}) if same else full, explanation.model != model)


def _listed(explanation: Explanation, full: Shown, names_model: bool) -> Listed:
    safe = displayed(explanation)
    large = bool(gap_note(safe))
    gap = 0.0 if safe.ledger is None else safe.ledger.gap
    keys = {
        "target": safe.target,
        "output": f"{safe.output:.6g}",
        "probability": "" if safe.probability is None else f"{safe.probability:.6g}",
        "gap": f"{abs(gap):.6g}",
        "length": str(len(safe.features)),
        "large": "yes" if large else "",
    }
    return Listed(
        text=printable(explanation.text.replace("\r\n", "\n"), keep="\n"),
        target=safe.target,
        probability=safe.probability,
        output=number(safe.output),
        gap=number(gap) if large else "",
        model=safe.model if names_model else "",
        keys={f"data-{key}": value for key, value in keys.items() if value},
        full=full,
    )
