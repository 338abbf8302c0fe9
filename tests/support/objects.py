"""Models in memory as their libraries build them, and whether they are unchanged."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import conserva
import tiny_heads
import tiny_images
import tiny_speech


def closes(one: conserva.Explanation) -> bool:
    """Return whether the ledger of an explanation in float32 closes up to rounding errors."""
    entries = one.ledger
    assert entries is not None
    size = max(map(abs, (one.output, entries.inputs, entries.positions, entries.biases)))
    return abs(entries.gap) <= 1e-4 * size and abs(sum(one.scores) - entries.inputs) <= 1e-4 * size


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Return what loading must not change in a model."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return {
        "weights": {name: x.clone() for name, x in model.state_dict().items()},
        "training": {name: module.training for name, module in model.named_modules()},
        "gradients": {name: x.requires_grad for name, x in model.named_parameters()},
        "hooks": {name: [len(getattr(module, kind)) for kind in hooks] for name, module in model.named_modules()},
        "places": {name: (x.device, x.dtype, x.data_ptr()) for name, x in model.named_parameters()},
    }


def is_unchanged(model: nn.Module, before: dict[str, Any]) -> bool:
    after = snapshot(model)
    same = all(torch.equal(x, after["weights"][name]) for name, x in before["weights"].items())
    return same and all(after[name] == before[name] for name in before if name != "weights")


def bert(auto: str, **changes: Any) -> Any:
    """Return a tiny BERT in float32."""
    return tiny_heads.model("bert", auto, **changes).float()


def classifier(**changes: Any) -> Any:
    return bert("AutoModelForSequenceClassification", **changes)


def vit() -> Any:
    return tiny_images.vit().float()


def clip() -> Any:
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    return tiny_images.shake(CLIPModel(tiny_images.clip_config(CLIPConfig))).eval()


def whisper_processor() -> Any:
    from transformers import WhisperProcessor

    speech = tiny_speech.speech()
    found = WhisperProcessor.__new__(WhisperProcessor)  # its constructor wants a tokenizer of Whisper's class
    found.feature_extractor, found.tokenizer = speech.extractor, speech.tokenizer
    return found
