"""The table of readers: the name of a torch call -> its reader. Calls without one must be linear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import (
    activations,
    arithmetic,
    attention,
    composites,
    concat_and_fill,
    copies_and_views,
    detached_values,
    linear,
    lookup,
    norms,
    reordering,
)

if TYPE_CHECKING:
    from ..rules import RuleSet
    from .tensors import Reader

READERS = {
    name: reader
    for part in (
        activations,
        arithmetic,
        attention,
        composites,
        concat_and_fill,
        linear,
        lookup,
        detached_values,
        norms,
        copies_and_views,
        reordering,
    )
    for name, reader in part.READERS.items()
}

_FOR_NAMES = {reordering.move_axes, reordering.pick_rows, copies_and_views.copy, copies_and_views.view}
"""Readers that update the ledger, and record which parameter a constant was computed from."""

_FOR_FUNCTIONS = {arithmetic.READERS[name] for name in ("add", "sub", "rsub", "neg")}
"""Readers that update the ledger, and follow elementwise functions written in several calls."""


def is_idle(reader: Reader, rules: RuleSet) -> bool:
    """Return whether a reader has no effect without a ledger, so that its calls, most of a model's, can skip it."""
    if reader in _FOR_NAMES:  # other rules need the parameter that a matrix was computed from, or follow functions
        return rules.linear.differentiates and rules.activation.differentiates
    return reader in _FOR_FUNCTIONS and rules.activation.differentiates and rules.residual.differentiates
