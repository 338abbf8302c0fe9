"""The ledger as a waterfall: each entry begins where the one before ends, and the last one ends at the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.ledger import ENTRIES, Ledger

OUTPUT = "output"
"""The name of the last step, which goes from 0 to the output."""


@dataclass(frozen=True)
class LedgerStep:
    """A step of the waterfall: a signed value, drawn from `start` to `end` on the axis of the output."""

    name: str
    value: float
    start: float
    end: float


def ledger_steps(ledger: Ledger[float], output: float) -> list[LedgerStep]:
    """Return a step for each entry of a ledger, and a last one from 0 to the output."""
    steps, level = [], 0.0
    for name in ENTRIES:
        value = float(getattr(ledger, name))
        steps.append(LedgerStep(name, value, level, level + value))
        level += value
    return [*steps, LedgerStep(OUTPUT, output, 0.0, output)]


def axis_of(steps: Sequence[LedgerStep]) -> tuple[float, float]:
    """Return the lowest and the highest level of some steps, 0 included; (0, 1) if all values are 0."""
    levels = [level for step in steps for level in (step.start, step.end)]
    low, high = min([0.0, *levels]), max([0.0, *levels])
    return (low, high) if low < high else (0.0, 1.0)
