"""What tests share: gated models."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import conserva


def explained(model: nn.Module, inputs: Any, target: Any, checkpoint: str, **how: Any) -> Any:
    """Explain under a plan, or as torch keeps it."""
    if checkpoint != "plain":
        return conserva.relevance(model, inputs, target, checkpoint=checkpoint, **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys.modules["conserva.engine.relevance"], "within_memory", lambda checkpoint, device, run: run(None)
        )
        return conserva.relevance(model, inputs, target, **how)


def assert_same(result: Any, plain: Any) -> None:
    for place, values in plain.values.items():
        torch.testing.assert_close(result.values[place], values, rtol=1e-12, atol=1e-12)
    assert list(result.values) == list(plain.values)
    met, expected = ([replace(one, path="") for one in each.coverage] for each in (result, plain))
    assert met == expected
    if plain.ledger is not None:
        for entry in ("inputs", "positions", "biases", "gap"):
            expected = getattr(plain.ledger, entry)
            torch.testing.assert_close(getattr(result.ledger, entry), expected, rtol=1e-10, atol=1e-10)
