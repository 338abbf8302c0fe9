"""Tracing of attention scores from queries and keys to the attention map, and Proposition 1 for each head.

For y_j = sum_i p_ij v_i, where p_j is the softmax of scores s_j that are bilinear in queries and keys, the relevance
that leaves through queries, keys and values under the plain gradient exceeds the entering relevance by
2 sum_j Cov_j(s_j, v) . dF/dy_j (Ali et al. 2022, appendix A): all of it leaves through the values, and in addition
sum_ij s_ij dF/ds_ij through the queries and as much through the keys.
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
"""The attribute of a tensor with the origin of its scores: the product of queries and keys, added constants, scores."""


def note(context: Auditor, record: Record, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> None:
    """Trace scores from the product of queries and keys through the softmax to the product with the values."""
    rules, attributes = context.rules, context.attributes
    name, trace = record.function, _notes(args)
    if name == "scaled_dot_product_attention":
        if rules.attention.differentiates:
            record.covariance = _of_fused(*args, **kwargs)
    elif name == "logsumexp":
        share(args)
    elif name == "softmax":
        record.inside = True
        if trace:
            bias = trace.get("bias")
            scores = args[0].detach() if bias is None else args[0].detach() - bias
            attributes.set(out, _NOTES, {**trace, "scores": scores, "probabilities": out.detach(), "uses": []})
    elif name.startswith(("add", "__add", "__radd")):
        constants = [x for x in args if not live(x)]
        if trace and "scores" not in trace and len(constants) == 1:
            before = trace.get("bias")
            attributes.set(out, _NOTES, {**trace, "bias": constants[0] if before is None else before + constants[0]})
            if before is None and trace.setdefault("sums", []):
                trace["product"].split = True  # the same scores enter two softmaxes
            trace.setdefault("sums", []).append(record)
    elif record.kind == "attention" and len(args) == 2:
        if "scores" in trace:
            record.scores = trace["product"]
            trace["uses"].append(record)
            if rules.attention.differentiates:
                record.covariance = _covariance(trace["scores"], trace["probabilities"], args[1].detach())
            if len(trace["uses"]) > 1:  # the relevance of queries and keys then belongs to several products
                for use in trace["uses"]:
                    use.covariance = None
        else:
            record.inside = True
            attributes.set(out, _NOTES, {"product": record})


def pass_on(attributes: TensorAttributes, args: Sequence[Any], out: Any) -> None:
    """Pass the trace of scores to their product with a constant."""
    trace = _notes(args)
    if trace and live(out) and "scores" not in trace:
        attributes.set(out, _NOTES, trace)


def keep(attributes: TensorAttributes, args: Sequence[Any], out: Any) -> None:
    """Pass the trace of scores and maps to their copy in another dtype."""
    trace = _notes(args[:1])
    if trace and live(out):
        attributes.set(out, _NOTES, trace)


def add_in_place(attributes: TensorAttributes, args: Sequence[Any]) -> None:
    """Record a constant that was added to scores in place."""
    trace = _notes(args[:1])
    if trace and "scores" not in trace and len(args) > 1 and not live(args[1]):
        before = trace.get("bias")
        attributes.set(args[0], _NOTES, {**trace, "bias": args[1] if before is None else before + args[1]})


def share(args: Sequence[Any]) -> None:
    """Record that scores are used more than once, or in another operation than a softmax."""
    for x in args:
        trace = _notes([x])
        if trace:
            trace["product"].split = True


def _notes(args: Sequence[Any]) -> dict[str, Any]:
    return next((x.__dict__[_NOTES] for x in args if isinstance(x, Tensor) and _NOTES in x.__dict__), {})


def _covariance(scores: Tensor, probabilities: Tensor, values: Tensor) -> Any:
    def of(grad: Tensor) -> Tensor:
        p, s = in_float32(probabilities), in_float32(scores)
        along = grad @ in_float32(values).transpose(-1, -2)
        s = torch.where(p == 0, torch.zeros_like(s), s)  # masked positions contribute nothing
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
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            masked = masked.masked_fill(future, -math.inf)
        if attn_mask is not None:
            is_boolean = attn_mask.dtype == torch.bool
            masked = masked.masked_fill(~attn_mask, -math.inf) if is_boolean else masked + attn_mask
        probabilities = masked.softmax(-1).nan_to_num()
    return _covariance(scores.detach(), probabilities, value.detach())
