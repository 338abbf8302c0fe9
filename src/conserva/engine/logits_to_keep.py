"""Logits at the explained positions only: those of a language model at all other positions are not needed."""

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
"""An index into a sample's logits: (position, token)."""


def keep_explained_logits(model: nn.Module, call: Inputs, targets: Sequence[Any]) -> tuple[Inputs, list[Any]]:
    """Request logits at the explained positions only, by `logits_to_keep`, and renumber the targets' positions.

    The call is unchanged unless the model takes `logits_to_keep`, the caller does not pass it already, and every target
    is an index tuple (position, token) within range.

    Returns
    -------
    tuple
        The call and the targets to use.
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
    """Return the ids or embeddings whose next tokens a language model predicts: those of its decoder if it has one."""
    given = dict(call.kwargs)
    if call.args:
        given[call.first] = call.args[0]
    names = _DECODER_TOKENS if set(_DECODER_TOKENS) & set(parameters_of(model)) else _TOKENS
    tensors = [given[name] for name in names if isinstance(given.get(name), Tensor)]
    return tensors[0] if len(call.args) <= 1 and len(tensors) == 1 and tensors[0].dim() > 1 else None


def _vocabulary(model: nn.Module) -> int | None:
    """Return the size of the model's output vocabulary; None if it is unknown."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    weight = getattr(head, "weight", None)
    return weight.shape[0] if isinstance(weight, Tensor) and weight.dim() == 2 else None


def _can_keep(model: nn.Module, call: Inputs) -> bool:
    """Return whether the model takes `logits_to_keep` as a tensor, and the call neither passes it nor labels."""
    parameter = parameters_of(model).get(_KEEP)
    return (
        parameter is not None
        and "Tensor" in str(parameter.annotation)
        and _KEEP not in call.kwargs
        and call.kwargs.get("labels") is None
    )


def _entries(target: Any, samples: int, length: int, size: int) -> list[Entry]:
    """Return the target's entries of the logits, for each sample or one for all; [] if it has anything else."""
    entries = target if isinstance(target, list) else [target]
    fits = len(entries) == samples or not isinstance(target, list)
    return list(entries) if fits and all(_is_entry(entry, length, size) for entry in entries) else []


def _is_entry(value: Any, length: int, size: int) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
        and -length <= value[0] < length
        and -size <= value[1] < size
    )
