"""Attention: the softmax of eager attention and of routers, and `scaled_dot_product_attention`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import Error
from ..coverage import CONSTANT
from ..frozen_factors import with_value
from .mask_history import as_in_previous_pass
from .tensors import live
from .value_only import attend, repeated

if TYPE_CHECKING:
    from ..context import Propagation
    from .tensors import Reader


def softmax(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read a softmax. The products before and after it are read as matrix products."""
    if not live(input):
        context.coverage.record("attention", function.__name__, CONSTANT)
        return function(input, *args, **kwargs)
    rule = context.rule_for("attention", function)
    out = function(context.frozen(input) if rule.freezes else input, *args, **kwargs)
    if rule.temperature == 1:
        return out
    return with_value(function(input / rule.temperature, *args, **kwargs) * rule.temperature, out.detach())


def fused_attention(
    context: Propagation,
    function: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **kwargs: Any,
) -> Any:
    """Read `scaled_dot_product_attention`, with any mask, scale and grouping of heads."""
    if live(query) or live(key) or live(value):
        attn_mask, is_causal = as_in_previous_pass(query, key, attn_mask, is_causal)
        if dropout_p > 0:
            raise Error(f"The model applies dropout to attention (dropout_p={dropout_p}): call model.eval() first.")
        rule = context.rules.attention
        if rule.freezes:
            query, key, attn_mask = map(context.frozen, (query, key, attn_mask))
            query, key, value = in_autocast(query, key, value)
            out, path = None, "plain: nothing is fused in this pass"
            if context.is_lean:
                out, path = attend(query, key, value, attn_mask, is_causal, kwargs.get("scale"), context.keeper)
            context.rule_for("attention", function, path)
            if out is not None:
                return out
            return _plain(function, query, key, value, attn_mask, is_causal, **kwargs)
        if rule.temperature != 1:
            written = written_out(context, function, query, key, value, attn_mask, 0.0, is_causal, **kwargs)
            with torch.no_grad():
                result = _plain(function, query, key, value, attn_mask, is_causal, **kwargs)
            return with_value(written, result)
        context.rule_for("attention", function)
        if rule.shares:
            query, key, value = context.share(query, 1 / 4), context.share(key, 1 / 4), context.share(value, 1 / 2)
        return _plain(function, query, key, value, attn_mask, is_causal, **kwargs)
    context.coverage.record("attention", function.__name__, CONSTANT)
    return function(query, key, value, attn_mask, dropout_p, is_causal, **kwargs)


def _plain(
    function: Callable[..., Any], query: Any, key: Any, value: Any, mask: Any, causal: bool, **kwargs: Any
) -> Any:
    """Call torch's own function, with grouped heads repeated where that makes a fused kernel available."""
    if kwargs.get("enable_gqa"):
        query, key, value = in_autocast(query, key, value)
        ungrouped = repeated(query, key, value, mask, causal)
        if ungrouped is not None:
            (key, value), kwargs["enable_gqa"] = ungrouped, False
    return function(query, key, value, mask, 0.0, causal, **kwargs)


def in_autocast(*tensors: Tensor) -> list[Tensor]:
    """Return tensors cast to the autocast dtype, if autocast is enabled, as torch does for its own call."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors]


def written_out(
    context: Propagation,
    function: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Read `scaled_dot_product_attention` as matmul, softmax, matmul, so that the attention map is available."""
    if not (live(query) or live(key) or live(value)):
        context.coverage.record("attention", function.__name__, CONSTANT)
        how: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return function(query, key, value, attn_mask, dropout_p, **how)
    if dropout_p > 0:
        raise Error(f"The model applies dropout to attention (dropout_p={dropout_p}): call model.eval() first.")
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    mask = _numbers(attn_mask, query)
    if is_causal:
        mask = torch.full((query.shape[-2], key.shape[-2]), -math.inf, device=query.device).triu(1)
    with context.reading():
        scores = query @ key.transpose(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if mask is None:
            return F.softmax(scores, -1) @ value
        closed = (mask == -math.inf).all(-1, keepdim=True)  # a fully masked query attends to nothing, as in torch
        scores = scores + mask.to(scores.dtype).masked_fill(closed, 0)
        return F.softmax(scores, -1).masked_fill(closed, 0) @ value


def _numbers(mask: Any, query: Tensor) -> Tensor | None:
    """Return an additive mask."""
    if mask is None or mask.dtype != torch.bool:
        return mask  # type: ignore[no-any-return]
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -math.inf)


READERS: dict[str, Reader] = {
    **dict.fromkeys(("softmax", "softmin", "special_softmax", "_softmax", "_safe_softmax"), softmax),
    "scaled_dot_product_attention": fused_attention,
}
