"""Where relevance is read: names and patterns of modules."""

from __future__ import annotations

import pytest
import torch

import conserva
from tiny import llama, tokens

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.mark.parametrize("rules", ["exact", "attnlrp", "gi"])
def test_a_pattern_that_matches_constants_changes_nothing(rules: str) -> None:
    model, inputs = llama(), tokens()
    alone = conserva.relevance(model, inputs, 1, rules=rules)
    result = conserva.relevance(model, inputs, 1, rules=rules, at=["inputs", "*"])
    assert "model.layers.0" in result.values
    assert "model.rotary_emb" not in result.values  # cosines and sines, which the inputs do not change
    torch.testing.assert_close(result.scores(), alone.scores(), **CLOSE)
    torch.testing.assert_close(result.ledger.inputs, alone.ledger.inputs, **CLOSE)
