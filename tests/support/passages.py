"""A query with passages to rank."""

from __future__ import annotations

import conserva

QUERY = "which film by eastwood is unwatchably long?"
PASSAGES = [
    "an unwatchably long film by eastwood.",
    "a joy.",
    "it is not much of anything, and far too long; | nobody knows why.",
    "Eastwood | long",
]


def index_of(one: conserva.Explanation) -> int:
    """Return the index of the passage that an explanation of a ranking is about."""
    return int(one.provenance["passage"])
