"""Render the Jinja2 templates in `views/templates`.

Templates escape all values. Two kinds of text are exempt and marked as `Markup` where they are made: the package's own
style sheets and scripts (`asset`, below), and SVG serialised from an element tree, which escapes it (`svg.markup`).
No template uses `|safe`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .colours import grounds, shades, tint, tint_kind
from .verdict import isolated
from .wording import number, percent

LOADER = PackageLoader("conserva.views", "templates")


def render(template: str, **data: Any) -> str:
    """Return a rendered template."""
    return environment().get_template(template).render(data)


def render_parts(template: str, **data: Any) -> Iterator[str]:
    """Yield a rendered template in parts, consuming iterables in its data lazily."""
    return environment().get_template(template).generate(data)


def framed(page: str) -> str:
    """Return a page inside an iframe, for notebooks."""
    return render("frame.html", page=page)


@cache
def environment() -> Environment:
    """Return the Jinja2 environment of all templates."""
    result = Environment(
        loader=LOADER,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    result.filters |= {"number": number, "percent": percent, "shades": shades, "grounds": grounds}
    result.filters |= {"tint": tint, "tint_kind": tint_kind, "isolated": isolated}
    result.globals |= {"asset": asset, "script_hash": script_hash}
    result.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return result


@cache
def asset(name: str) -> Markup:
    """Return a style sheet or script of the package, exempt from escaping."""
    text, _, _ = LOADER.get_source(environment(), name)
    return Markup(text)


@cache
def script_hash(name: str) -> str:
    """Return the hash of a script of the package, which allows it in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(asset(name).encode()).digest()).decode()}"
