"""Explanations as a page that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from .._util.text import displayed
from ..results.explanation import Explanation
from ..results.explanations import Comparison
from .colours import scale_of
from .components import bar_of
from .picture_nodes import called, counted, strongest, virtual_node
from .pictures import svg
from .rendering import render_parts
from .wording import caption, ledger_line, sink_line


def page(explanations: Iterable[Explanation], refused: Mapping[str, str] | None = None) -> str:
    """Return a whole page, with why methods were refused. Its policy forbids it to load or run anything."""
    return "".join(page_parts(explanations, refused))


def page_parts(explanations: Iterable[Explanation], refused: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield a page part by part, as the explanations come: there may be more than memory holds."""
    rest = iter(explanations)
    first = list(islice(rest, 1))
    title = caption(displayed(first[0])) if first else "conserva"
    yield from _parts("page.html", chain(first, rest), refused, title)


def fragment(explanations: Iterable[Explanation], refused: Mapping[str, str] | None = None) -> str:
    """Return the part of a page that shows explanations, as notebooks take it."""
    return "".join(_parts("fragment.html", explanations, refused))


def comparison_page(comparison: Comparison) -> str:
    """Return a whole page of a comparison."""
    return page(comparison, comparison.refused)


def comparison_fragment(comparison: Comparison) -> str:
    """Return a comparison as notebooks take it."""
    return fragment(comparison, comparison.refused)


def _parts(
    layout: str, explanations: Iterable[Explanation], refused: Mapping[str, str] | None, title: str = ""
) -> Iterator[str]:
    shown = (_shown(displayed(one)) for one in explanations)
    return render_parts(
        "explanations.html", layout=layout, title=title, explanations=shown, refused=displayed(refused or {})
    )


def _shown(one: Explanation) -> dict[str, Any]:
    """Return what the template shows of an explanation: its tokens, or its picture."""
    scale = scale_of([one])
    both = {"caption": caption(one), "scale": scale, "bar": bar_of(one.ledger, one.output, ledger_line(one))}
    if one.picture is None:
        return {**both, "svg": None, "inputs": list(_inputs(one)), "sink": sink_line(one)}
    name = called(one)
    return {
        **both,
        "text": one.text,
        "svg": svg(one, scale, in_page=True),
        "virtual": virtual_node(one),
        "unit": f"{'an' if name[0] in 'aeiou' else 'a'} {name}",
        "counted": counted(one),
        "nodes": strongest(one),
    }


def _inputs(one: Explanation) -> Iterator[tuple[str | None, list[tuple[str, float, bool]]]]:
    """Yield the tokens of each input with its name, or of the only one without."""
    tokens = list(zip(one.features, one.scores, one.special, strict=True))
    first = 0
    for name, count in one.sections or ((None, len(tokens)),):
        yield name, tokens[first : first + count]
        first += count
