"""Methods that weight attention by its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .attention_maps import Map
from .attention_pass import AttentionPass, SequenceKey, attention_pass, row_means, without_own
from .attribution import Attribution

Relevances = dict[tuple[SequenceKey, SequenceKey], Tensor]
"""(sequence, other) -> the relevance of each position of the other for each position of the sequence."""


def gae(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    target: Any,
    *,
    variant: Literal["definition", "rollout"],
) -> Attribution:
    """Return the generic attention explanation of Chefer et al. (ICCV 2021), for one sequence or several.

    variant=rollout is what Ali et al.'s code for SST-2 computes under this name: the rollout of row-normalised weighted
    maps, summed over all positions.
    """
    attended = attention_pass(model, inputs, target)
    if variant == "rollout":
        return _weighted_rollout(attended)
    additions: dict[int, Relevances] = {}
    for attention in attended.maps:
        additions[attention.number] = _addition(attended, attention, additions)
    scores: dict[SequenceKey, Tensor] = {}
    for sequence, rows in attended.read.items():
        written = {n for n in attended.written if attended.maps_by_number[n].query.sequence == sequence}
        for (_, other), relevance in _state(attended, sequence, written, additions).items():
            own = without_own(relevance) if other == sequence else relevance
            means = row_means(own, rows)
            scores[other] = scores[other] + means if other in scores else means
    return attended.attribution(scores)


def weighted(attended: AttentionPass, attention: Map) -> Tensor:
    """Return a map times its gradient, with the positive part averaged over heads (equation 5)."""
    return (attended.gradients[attention.number] * attended.probabilities(attention)).clamp(min=0).mean(1)


def _state(
    attended: AttentionPass, sequence: SequenceKey, written: set[int] | frozenset[int], additions: Any
) -> Relevances:
    """Return the relevances of a sequence after some maps: the identity, plus what the maps added.

    The updates are sums, so the maps determine the state. If two sequences attend to each other at the same time, each
    uses the state of the other before.
    """
    size = attended.sizes[sequence]
    first = torch.eye(size).to(attended.output).expand(attended.output.shape[0], size, size)
    state = {(sequence, sequence): first}
    for number in sorted(written):
        for key, addition in additions[number].items():
            state[key] = state[key] + addition if key in state else addition
    return state


def _addition(attended: AttentionPass, attention: Map, additions: Mapping[int, Relevances]) -> Relevances:
    """Return what a map adds to the relevances of the sequence of its queries."""
    cam = weighted(attended, attention)
    queries, keys = attention.query.sequence, attention.key.sequence
    own = _state(attended, queries, attention.query.written, additions)
    if attention.is_self:  # R_ss += A R_ss and R_sq += A R_sq (equations 6 and 7)
        return {key: cam @ relevance for key, relevance in own.items()}
    other = _state(attended, keys, attention.key.written, additions)
    mixed = _normalised(own[queries, queries]).transpose(-1, -2) @ cam @ _normalised(other[keys, keys])
    added = {(queries, keys): mixed}  # R_sq += R_ss^T A R_qq, both normalised (equations 8 to 10)
    if (keys, queries) in other:  # R_ss += A R_qs (equation 11), if the other sequence attended to this one
        added[queries, queries] = cam @ other[keys, queries]
    return added


def _normalised(relevance: Tensor) -> Tensor:
    """Return I plus R - I with its rows scaled to a sum of 1; rows of zeros stay 0 (equations 8 and 9)."""
    identity = torch.eye(relevance.shape[-1]).to(relevance)
    rest = relevance - identity
    sums = rest.sum(-1, keepdim=True)
    return torch.where(sums == 0, torch.zeros_like(rest), rest / torch.where(sums == 0, 1, sums)) + identity


def _weighted_rollout(attended: AttentionPass) -> Attribution:
    product: Tensor | None = None
    for attention in attended.stack("gae:variant=rollout", rows="all"):
        joint = weighted(attended, attention)
        joint = joint + torch.eye(joint.shape[-1]).to(joint)
        joint = joint / joint.sum(-1, keepdim=True)
        product = joint if product is None else joint @ product
    assert product is not None
    rows = attended.rows()
    product = torch.where(rows[:, :, None], without_own(product), product)
    real = attended.real(product.shape[-1]).to(product)
    (sequence,) = attended.read
    return attended.attribution({sequence: torch.einsum("bq,bqk->bk", real, product) * real})


def attn_gradcam(model: nn.Module, inputs: Mapping[str, Tensor], target: Any) -> Attribution:
    """Return Grad-CAM on the last layer's attention, a baseline of Chefer et al. (CVPR 2021).

    A head's weight is the mean gradient over the rows that the target reads, without masked keys.
    """
    attended = attention_pass(model, inputs, target)
    last = attended.stack("attn-gradcam")[-1]
    probabilities, gradient = attended.probabilities(last), attended.gradients[last.number]
    rows = attended.rows()
    seen = (probabilities.ne(0).any(1) & rows[:, :, None])[:, None].to(gradient)
    weights = (gradient * seen).sum((-1, -2), keepdim=True) / seen.sum((-1, -2), keepdim=True)
    matrix = (weights * probabilities).mean(1).clamp(min=0)
    (sequence,) = attended.read
    return attended.attribution({sequence: row_means(matrix, rows)})
