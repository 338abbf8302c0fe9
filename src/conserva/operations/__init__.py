"""How torch calls are read: the name of a call -> its reader. Calls without one are linear in what is live."""

from __future__ import annotations

from . import activations, arithmetic, attention, composites, joins, linear, lookup, norms, rows

READERS = {
    name: reader
    for part in (activations, arithmetic, attention, composites, joins, linear, lookup, norms, rows)
    for name, reader in part.READERS.items()
}
