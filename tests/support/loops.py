"""What tests share: loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import conserva
import tiny
from conserva.engine.passes import Relevance
from conserva.replay.recorder import AFTER
from conserva.replay.scope import Replaying

OFTEN = AFTER + 4


def same(found: Relevance, expected: Relevance) -> None:
    for place, wanted in expected.values.items():
        assert torch.equal(found.values[place], wanted)
    assert torch.equal(found.output, expected.output)
    assert found.logits is None or torch.equal(found.logits, expected.logits)
    assert list(found.coverage) == list(expected.coverage)
    assert (found.rules, found.plan, set(found.inputs)) == (expected.rules, expected.plan, set(expected.inputs))
    if expected.ledger is None:
        assert found.ledger is None
        return
    assert found.ledger is not None
    for name in ("output", "inputs", "positions", "biases"):
        assert torch.equal(getattr(found.ledger, name), getattr(expected.ledger, name))
    assert dict(found.modules).keys() == dict(expected.modules).keys()
    for owner, wanted in expected.modules.items():
        assert torch.equal(found.modules[owner], wanted)


def loop(fast: Replaying, model: nn.Module, inputs: Callable[[int], Any] | None = None, **how: Any) -> None:
    """Explain again and again, each time right."""
    for seed in range(OFTEN):
        given = tiny.tokens(seed=seed) if inputs is None else inputs(seed)
        same(fast.relevance(given, **how), conserva.relevance(model, given, **how))
