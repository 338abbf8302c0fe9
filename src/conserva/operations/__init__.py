"""How torch calls are read: the name of a call -> its reader. Calls without one are linear in what is live."""

from __future__ import annotations

from . import activations, arithmetic, attention, composites, groups, joins, linear, lookup, norms, rows

# The last part reads some calls on top of the others' readers, in whose place it stands.
READERS = {
    name: reader
    for part in (activations, arithmetic, attention, composites, joins, linear, lookup, norms, rows, groups)
    for name, reader in part.READERS.items()
}
