"""Attention weighted by its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .attention_maps import Map
from .attention_pass import AttentionPass, SequenceKey, attention_pass, row_means, without_own
from .attribution import Attribution

Relevances = dict[tuple[SequenceKey, SequenceKey], Tensor]
"""(sequence, other) -> how much each place of the one holds of each place of the other."""


def gae(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    target: Any,
    *,
    variant: Literal["definition", "rollout"] = "definition",
) -> Attribution:
    """Return the generic attention explanation of Chefer et al. (ICCV 2021), for one sequence or several.

    variant=rollout is what Ali et al.'s code for SST-2 computes under this name: the rollout of row-normalised weighted
    maps, summed over all places.
    """
    attended = attention_pass(model, inputs, target)
    if variant == "rollout":
        return _weighted_rollout(attended)
    additions: dict[int, Relevances] = {}
    for one in attended.maps:
        additions[one.number] = _addition(attended, one, additions)
    scores: dict[SequenceKey, Tensor] = {}
    for sequence, rows in attended.read.items():
        written = {n for n in attended.written if attended.maps_by_number[n].query.sequence == sequence}
        for (_, other), relevance in _state(attended, sequence, written, additions).items():
            own = without_own(relevance) if other == sequence else relevance
            found = row_means(own, rows)
            scores[other] = scores[other] + found if other in scores else found
    return attended.attribution(scores)


def weighted(attended: AttentionPass, one: Map) -> Tensor:
    """Return a map weighted by its gradient, positive parts averaged over heads (equation 5)."""
    return (attended.gradients[one.number] * attended.probabilities(one)).clamp(min=0).mean(1)


def _state(
    attended: AttentionPass, sequence: SequenceKey, written: set[int] | frozenset[int], additions: Any
) -> Relevances:
    """Return what a sequence holds once some maps were written into it: itself, and what they added.

    The updates are sums, so a state is known by its maps. Two sequences that look at each other at the same time each
    see the other as it was before.
    """
    size = attended.sizes[sequence]
    first = torch.eye(size).to(attended.output).expand(attended.output.shape[0], size, size)
    state = {(sequence, sequence): first}
    for number in sorted(written):
        for key, addition in additions[number].items():
            state[key] = state[key] + addition if key in state else addition
    return state


def _addition(attended: AttentionPass, one: Map, additions: Mapping[int, Relevances]) -> Relevances:
    """Return what one map adds to the sequence of its queries."""
    cam = weighted(attended, one)
    queries, keys = one.query.sequence, one.key.sequence
    own = _state(attended, queries, one.query.written, additions)
    if one.is_self:  # R_ss += A R_ss and R_sq += A R_sq (equations 6 and 7)
        return {key: cam @ relevance for key, relevance in own.items()}
    other = _state(attended, keys, one.key.written, additions)
    mixed = _normalised(own[queries, queries]).transpose(-1, -2) @ cam @ _normalised(other[keys, keys])
    added = {(queries, keys): mixed}  # R_sq += R_ss^T A R_qq, both normalised (equations 8 to 10)
    if (keys, queries) in other:  # R_ss += A R_qs (equation 11), where the other sequence looked back
        added[queries, queries] = cam @ other[keys, queries]
    return added


def _normalised(relevance: Tensor) -> Tensor:
    """Return R with its rows scaled to 1, the identity aside; a row of zeros stays (equations 8 and 9)."""
    identity = torch.eye(relevance.shape[-1]).to(relevance)
    rest = relevance - identity
    sums = rest.sum(-1, keepdim=True)
    return torch.where(sums == 0, torch.zeros_like(rest), rest / torch.where(sums == 0, 1, sums)) + identity


def _weighted_rollout(attended: AttentionPass) -> Attribution:
    product: Tensor | None = None
    for one in attended.stack("gae:variant=rollout", rows="all"):
        joint = weighted(attended, one)
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
    """Return Grad-CAM on the last layer's attention, the baseline of Chefer et al. (CVPR 2021).

    A head's weight is its mean gradient over the places that the target reads and sees; masked ones do not count.
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
