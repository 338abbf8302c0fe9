"""How torch calls are read: the name of a call -> its reader. Calls without one are linear in what is live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import activations, arithmetic, attention, composites, joins, linear, lookup, lost, moves, norms, rows

if TYPE_CHECKING:
    from ..rules import RuleSet
    from .tensors import Reader

READERS = {
    name: reader
    for part in (activations, arithmetic, attention, composites, joins, linear, lookup, lost, norms, moves, rows)
    for name, reader in part.READERS.items()
}

_FOR_NAMES = {rows.move_axes, rows.pick_rows, moves.copy, moves.view}
"""Readers that keep books, and remember which parameter a constant was made from."""

_FOR_FUNCTIONS = {arithmetic.READERS[name] for name in ("add", "sub", "rsub", "neg")}
"""Readers that keep books, and follow elementwise functions that are written in several calls."""


def is_idle(reader: Reader, rules: RuleSet) -> bool:
    """Tell whether a reader makes a call as it stands where no books are kept: such calls are most of a model's."""
    if reader in _FOR_NAMES:  # the other rules ask for the parameter that a matrix is, or follow functions
        return rules.linear.differentiates and rules.activation.differentiates
    return reader in _FOR_FUNCTIONS and rules.activation.differentiates
