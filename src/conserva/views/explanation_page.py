"""Explanations as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from .._util.text import displayed
from ..results.explanation import Explanation
from ..results.explanations import Comparison
from .colours import scale_of
from .components import bar_of
from .picture_nodes import counted, node_noun, strongest, virtual_node
from .pictures import svg
from .rendering import render_parts
from .wording import caption, ledger_line, sink_line


def page(explanations: Iterable[Explanation], refused: Mapping[str, str] | None = None) -> str:
    """Return an HTML page of explanations, and of methods that do not apply (`refused`, method -> reason).

    Its content security policy forbids loading anything and running scripts.
    """
    return "".join(page_parts(explanations, refused))


def page_parts(explanations: Iterable[Explanation], refused: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield the page in parts, consuming the explanations lazily: they need not fit in memory."""
    rest = iter(explanations)
    first = list(islice(rest, 1))
    title = caption(displayed(first[0])) if first else "conserva"
    yield from _parts("page.html", chain(first, rest), refused, title)


def fragment(explanations: Iterable[Explanation], refused: Mapping[str, str] | None = None) -> str:
    """Return explanations as an HTML fragment, for notebooks."""
    return "".join(_parts("fragment.html", explanations, refused))


def comparison_page(comparison: Comparison) -> str:
    """Return an HTML page of a comparison."""
    return page(comparison, comparison.refused)


def comparison_fragment(comparison: Comparison) -> str:
    """Return a comparison as an HTML fragment, for notebooks."""
    return fragment(comparison, comparison.refused)


def _parts(
    layout: str, explanations: Iterable[Explanation], refused: Mapping[str, str] | None, title: str = ""
) -> Iterator[str]:
    shown = (_template_data(displayed(explanation)) for explanation in explanations)
    return render_parts(
        "explanations.html", layout=layout, title=title, explanations=shown, refused=displayed(refused or {})
    )


def _template_data(explanation: Explanation) -> dict[str, Any]:
    """Return the template's data of an explanation: its tokens or its picture."""
    scale = scale_of([explanation])
    shared = {
        "caption": caption(explanation),
        "scale": scale,
        "bar": bar_of(explanation.ledger, explanation.output, ledger_line(explanation)),
    }
    if explanation.picture is None:
        return {**shared, "svg": None, "inputs": list(_inputs(explanation)), "sink": sink_line(explanation)}
    name = node_noun(explanation)
    return {
        **shared,
        "text": explanation.text,
        "svg": svg(explanation, scale, in_page=True),
        "virtual": virtual_node(explanation),
        "unit": f"{'an' if name[0] in 'aeiou' else 'a'} {name}",
        "counted": counted(explanation),
        "nodes": strongest(explanation),
    }


def _inputs(explanation: Explanation) -> Iterator[tuple[str | None, list[tuple[str, float, bool]]]]:
    """Yield the name and the tokens of each input; the name of a single input is None."""
    tokens = list(zip(explanation.features, explanation.scores, explanation.special, strict=True))
    first = 0
    for name, count in explanation.sections or ((None, len(tokens)),):
        yield name, tokens[first : first + count]
        first += count
