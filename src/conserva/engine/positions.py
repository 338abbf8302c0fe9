"""Logits only where they are explained: of a language model's scores at all positions, most are never read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn

from .inputs import Inputs, parameters_of
from .transfer import on_device

_KEEP = "logits_to_keep"
_TOKENS = ("input_ids", "inputs_embeds")
_DECODER_TOKENS = ("decoder_input_ids", "decoder_inputs_embeds")

Entry: TypeAlias = tuple[int, int]
"""An index into a sample's logits: a position, and a token."""


def only_explained(model: nn.Module, call: Inputs, targets: Sequence[Any]) -> tuple[Inputs, list[Any]]:
    """Ask the model for logits at the explained positions alone, and count the targets' positions among those.

    Nothing is changed unless the model can do that, the caller does not use it already, and every target is an index
    tuple (position, token) that exists.
    """
    as_given = call, list(targets)
    tokens, size = _tokens(model, call), _vocabulary(model)
    if tokens is None or size is None or call.batch_dim or not _can_keep(model, call):
        return as_given
    entries = [_entries(target, call.samples(), tokens.shape[1], size) for target in targets]
    if not all(entries):
        return as_given
    positions = list(dict.fromkeys(position for each in entries for position, _ in each))
    row = {position: i for i, position in enumerate(positions)}
    rows = [[(row[position], token) for position, token in each] for each in entries]
    moved = [each if isinstance(target, list) else each[0] for target, each in zip(targets, rows, strict=True)]
    kept: Any = 1 if positions == [-1] else on_device(positions, tokens.device)
    return call.with_(**{_KEEP: kept}), moved


def _tokens(model: nn.Module, call: Inputs) -> Tensor | None:
    """Return the tokens that a language model scores the followers of: one row for each sample, its decoder's first."""
    given = dict(call.kwargs)
    if call.args:
        given[call.first] = call.args[0]
    names = _DECODER_TOKENS if set(_DECODER_TOKENS) & set(parameters_of(model)) else _TOKENS
    found = [given[name] for name in names if isinstance(given.get(name), Tensor)]
    return found[0] if len(call.args) <= 1 and len(found) == 1 and found[0].dim() > 1 else None


def _vocabulary(model: nn.Module) -> int | None:
    """Return how many tokens the model scores, where it tells."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    weight = getattr(head, "weight", None)
    return weight.shape[0] if isinstance(weight, Tensor) and weight.dim() == 2 else None


def _can_keep(model: nn.Module, call: Inputs) -> bool:
    """Tell whether the model takes a tensor of positions, and nothing in the call speaks against it."""
    parameter = parameters_of(model).get(_KEEP)
    return (
        parameter is not None
        and "Tensor" in str(parameter.annotation)
        and _KEEP not in call.kwargs
        and call.kwargs.get("labels") is None
    )


def _entries(target: Any, samples: int, length: int, size: int) -> list[Entry]:
    """Return what a target says about each sample, and nothing unless all of it is an entry of the logits."""
    each = target if isinstance(target, list) else [target]
    fits = len(each) == samples or not isinstance(target, list)
    return list(each) if fits and all(_is_entry(one, length, size) for one in each) else []


def _is_entry(one: Any, length: int, size: int) -> bool:
    return (
        isinstance(one, tuple)
        and len(one) == 2
        and all(isinstance(i, int) and not isinstance(i, bool) for i in one)
        and -length <= one[0] < length
        and -size <= one[1] < size
    )
