"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LEAST_SIMILAR = 0.6
"""The similarity from which a name is suggested: 1 for equal names, 0 for names without common characters."""


def nearest(given: str, known: Iterable[str]) -> str | None:
    """Return the most similar of the known names, ignoring case; None if all are very different."""
    names = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(given.casefold()[:200], names, 1, LEAST_SIMILAR)  # quadratic in the length
    return names[near[0]] if near else None


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'name'?" for error messages; an empty string if no known name is similar."""
    near = nearest(given, known)
    return "" if near is None else f" Did you mean {near!r}?"
