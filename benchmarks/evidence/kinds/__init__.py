"""The kinds of items, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ..item import Item, Source
from . import injected, ioi, known, planted, squad, tracking

KINDS: Mapping[str, Callable[[Source], Iterator[Item]]] = {
    "squad": squad.items,
    "known": known.items,
    "ioi": ioi.items,
    "planted": planted.items,
    "tracking": tracking.items,
    "injected": injected.items,
}
