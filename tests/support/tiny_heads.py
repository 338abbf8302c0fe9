"""Tiny Hugging Face models with other heads, for the tokenizer of the bundled classifier."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import conserva
from tiny import shake
from zoo import shrink


@lru_cache
def _tokenizer() -> Any:
    return conserva.load().tokenizer


def tokenizer() -> Any:
    """Return the tokenizer of the bundled classifier: a copy, which takes a tenth of the time of reading it."""
    return copy.deepcopy(_tokenizer())


def model(kind: str, auto_class: str, **changes: Any) -> Any:
    """Return a model in float64, with its parameters off their special starting values."""
    config = shrink(transformers.AutoConfig.for_model(kind))
    for name, value in {"vocab_size": 12000, "pad_token_id": 0, **changes}.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    return shake(getattr(transformers, auto_class).from_config(config)).double()


def state_of(network: nn.Module) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in network.state_dict().items()}


def is_as_it_was(network: nn.Module, before: dict[str, Tensor]) -> bool:
    hooks = any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    kept = all(torch.equal(x, before[name]) for name, x in network.state_dict().items())
    return kept and not hooks and not network.training and all(x.grad is None for x in network.parameters())


def closes(one: conserva.Explanation) -> bool:
    """Return whether the books of an explanation in float64 lack no more than rounding."""
    entries = one.ledger
    assert entries is not None
    size = max(map(abs, (one.output, entries.inputs, entries.positions, entries.biases)))
    return abs(entries.gap) <= 1e-10 * size and abs(sum(one.scores) - entries.inputs) <= 1e-10 * size


def scores_with_pads(task: Any, encoded: list[Any], target: Any = None) -> dict[str, Tensor]:
    """Return the relevance of all places of a batch, pads among them."""
    inputs = task.batch(encoded)
    found = conserva.relevance(task.model, inputs, target, rules="exact")
    return {name: found.scores(name) for name in task.features}
