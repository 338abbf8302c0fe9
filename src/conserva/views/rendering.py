"""Pages from the templates in `views/templates`, by one Jinja2 environment.

Templates escape everything that they insert. Two kinds of text are exempt, and marked as `Markup` where they are made:
the package's own style sheets and scripts (`asset`, below), and SVG that was written from a tree of elements, which
escapes by construction (`svg.markup`). No template uses `|safe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .colours import LEDGER_ON_PAGES, grounds, shades
from .wording import number

LOADER = PackageLoader("conserva.views", "templates")


def render(template: str, **data: Any) -> str:
    """Return a template as text."""
    return environment().get_template(template).render(data)


def render_parts(template: str, **data: Any) -> Iterator[str]:
    """Yield a template part by part, as the iterables in its data are consumed."""
    return environment().get_template(template).generate(data)


def framed(page: str) -> str:
    """Return a page in a frame, as notebooks take it."""
    return render("frame.html", page=page)


@cache
def environment() -> Environment:
    """Return the environment of all templates."""
    found = Environment(
        loader=LOADER,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {"number": number, "shades": shades, "grounds": grounds}
    found.globals |= {"asset": asset, "LEDGER": LEDGER_ON_PAGES}
    found.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return found


@cache
def asset(name: str) -> Markup:
    """Return a style sheet or a script of the package, to be inserted as it is."""
    text, _, _ = LOADER.get_source(environment(), name)
    return Markup(text)
