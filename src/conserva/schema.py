"""JSON that says what it is."""

from __future__ import annotations

import json
from typing import Any

from .errors import Error


def parsed(text: str, schema: str, what: str) -> dict[str, Any]:
    """Return the fields of a result that was written as JSON, if it is whole and of that schema."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise Error(f"This is no JSON, or only a part of it: {error}.") from None
    if not isinstance(found, dict) or found.pop("schema", None) != schema:
        raise Error(f"This JSON is no {what}: its schema is not {schema!r}.")
    return found
