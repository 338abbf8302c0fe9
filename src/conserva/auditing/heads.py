"""Attention heads under the plain gradient: which scores a map is the softmax of, and Proposition 1 about it.

For y_j = sum_i p_ij v_i with p_j the softmax of scores s_j that are bilinear in queries and keys, what leaves through
queries, keys and values exceeds what enters by 2 sum_j Cov_j(s_j, v) . dF/dy_j (Ali et al. 2022, appendix A): values
pass everything on, and queries and keys give sum_ij s_ij dF/ds_ij each, on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..engine.operations.tensor_attributes import TensorAttributes
from ..engine.operations.tensors import in_float32, live

if TYPE_CHECKING:
    from .auditor import Auditor, Record

_NOTES = "conserva_scores"
"""Where a tensor keeps what it is made of: the product of queries and keys, constants added since, the scores."""


def note(context: Auditor, record: Record, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> None:
    """Follow scores from the product of queries and keys through the softmax to the product with the values."""
    rules, attributes = context.rules, context.attributes
    name, found = record.function, _notes(args)
    if name == "scaled_dot_product_attention":
        if rules.attention.differentiates:
            record.covariance = _of_fused(*args, **kwargs)
    elif name == "logsumexp":
        share(args)
    elif name == "softmax":
        record.inside = True
        if found:
            bias = found.get("bias")
            scores = args[0].detach() if bias is None else args[0].detach() - bias
            attributes.set(out, _NOTES, {**found, "scores": scores, "probabilities": out.detach(), "uses": []})
    elif name.startswith(("add", "__add", "__radd")):
        constants = [one for one in args if not live(one)]
        if found and "scores" not in found and len(constants) == 1:
            before = found.get("bias")
            attributes.set(out, _NOTES, {**found, "bias": constants[0] if before is None else before + constants[0]})
            if before is None and found.setdefault("sums", []):
                found["product"].split = True  # the same scores in two softmaxes
            found.setdefault("sums", []).append(record)
    elif record.kind == "attention" and len(args) == 2:
        if "scores" in found:
            record.scores = found["product"]
            found["uses"].append(record)
            if rules.attention.differentiates:
                record.covariance = _covariance(found["scores"], found["probabilities"], args[1].detach())
            if len(found["uses"]) > 1:  # what leaves through queries and keys then belongs to several products
                for one in found["uses"]:
                    one.covariance = None
        else:
            record.inside = True
            attributes.set(out, _NOTES, {"product": record})


def pass_on(attributes: TensorAttributes, args: Sequence[Any], out: Any) -> None:
    """Let a multiple of scores be scores."""
    found = _notes(args)
    if found and live(out) and "scores" not in found:
        attributes.set(out, _NOTES, found)


def keep(attributes: TensorAttributes, args: Sequence[Any], out: Any) -> None:
    """Let scores and maps in another dtype be what they were."""
    found = _notes(args[:1])
    if found and live(out):
        attributes.set(out, _NOTES, found)


def add_in_place(attributes: TensorAttributes, args: Sequence[Any]) -> None:
    """Note a constant that was added to scores where they are."""
    found = _notes(args[:1])
    if found and "scores" not in found and len(args) > 1 and not live(args[1]):
        before = found.get("bias")
        attributes.set(args[0], _NOTES, {**found, "bias": args[1] if before is None else before + args[1]})


def share(args: Sequence[Any]) -> None:
    """Note that scores go several ways: into a sum with others, or into more than a softmax."""
    for one in args:
        found = _notes([one])
        if found:
            found["product"].split = True


def _notes(args: Sequence[Any]) -> dict[str, Any]:
    return next((one.__dict__[_NOTES] for one in args if isinstance(one, Tensor) and _NOTES in one.__dict__), {})


def _covariance(scores: Tensor, probabilities: Tensor, values: Tensor) -> Any:
    def of(grad: Tensor) -> Tensor:
        p, s = in_float32(probabilities), in_float32(scores)
        along = grad @ in_float32(values).transpose(-1, -2)
        s = torch.where(p == 0, torch.zeros_like(s), s)  # what is masked has no part in it
        spread = along - (p * along).sum(-1, keepdim=True)
        return 2 * (p * s * spread).sum((-1, -2))

    return of


def _of_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    with torch.no_grad():
        if enable_gqa:
            key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
        scores = query @ key.transpose(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        masked = scores
        if is_causal:
            closed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            masked = masked.masked_fill(closed, -math.inf)
        if attn_mask is not None:
            is_open = attn_mask.dtype == torch.bool
            masked = masked.masked_fill(~attn_mask, -math.inf) if is_open else masked + attn_mask
        probabilities = masked.softmax(-1).nan_to_num()
    return _covariance(scores.detach(), probabilities, value.detach())
