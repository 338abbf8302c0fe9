"""TransformerLens: models of its own, without Hugging Face, are explained with ledgers that close."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformer_lens", reason="transformer_lens is not installed")

from transformer_lens import TransformerBridge, TransformerBridgeConfig

import conserva

IDS = torch.randint(40, 99, (2, 7), generator=torch.Generator().manual_seed(1))
TARGET = (-1, 50)


def native(**changes: Any) -> Any:
    """Return a tiny model of TransformerLens's own, without Hugging Face, in float64 and with biases."""
    sizes = {"n_layers": 2, "d_model": 32, "n_ctx": 16, "d_head": 8, "n_heads": 4, "d_mlp": 48, "d_vocab": 99}
    bridge = TransformerBridge.boot_native(
        TransformerBridgeConfig(**{**sizes, "act_fn": "gelu", "seed": 0, **changes}), dtype=torch.float64
    ).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in bridge.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return bridge


NATIVE = {
    "standard": {},
    "RMS norms": {"normalization_type": "RMS"},
    "norms without parameters": {"normalization_type": "LNPre"},
    "RMS norms without parameters": {"normalization_type": "RMSPre"},
    "no norms": {"normalization_type": None},
    "gated": {"gated_mlp": True, "act_fn": "silu"},
    "SoLU with a norm": {"act_fn": "solu_ln"},
    "attention only": {"attn_only": True, "d_mlp": None},
    "grouped heads": {"n_key_value_heads": 2},
    "caps": {"attn_scores_soft_cap": 10.0, "output_logits_soft_cap": 10.0},
    "rotary": {"positional_embedding_type": "rotary", "rotary_dim": 8},
}


@pytest.mark.parametrize("name", NATIVE)
def test_models_of_transformer_lens_itself(name: str) -> None:
    bridge = native(**NATIVE[name])
    with torch.no_grad():
        output = bridge(IDS)
    result = conserva.relevance(bridge, IDS, TARGET)
    assert torch.equal(result.output, output[:, -1, 50])
    assert result.ledger.inputs.abs().min() > 1e-3
    assert result.ledger.gap_share.max() < 1e-6
