"""Calls that consist of several operations: they are decomposed, so that each operation follows its rule."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import Error
from .elementwise import computed_on_copy
from .tensors import live

if TYPE_CHECKING:
    from ..context import Propagation
    from .tensors import Reader


def multi_head_attention(
    context: Propagation,
    function: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Read `multi_head_attention_forward`, which `nn.MultiheadAttention` calls, with the batch dimension first."""
    if static_k is not None or static_v is not None:
        raise Error("multi_head_attention_forward with static_k or static_v is not supported: pass key and value.")
    if training and dropout_p > 0:
        raise Error(f"The model applies dropout to attention (dropout={dropout_p}): call model.eval() first.")
    weights: Any
    if use_separate_proj_weight:
        weights = (q_proj_weight, k_proj_weight, v_proj_weight)
    else:
        weights = cast(Tensor, in_proj_weight).chunk(3)
    biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    for part in biases:
        context.name_as(part, in_proj_bias)

    with context.reading():
        batched = query.dim() == 3
        inputs = [x.transpose(0, 1) if batched else x.unsqueeze(0) for x in (query, key, value)]
        q, k, v = (F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True))
        samples, extra = q.shape[0], 0
        if bias_k is not None and bias_v is not None:
            k = torch.cat([k, bias_k.expand(samples, -1, -1)], 1)
            v = torch.cat([v, bias_v.expand(samples, -1, -1)], 1)
            extra += 1
        if add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
            extra += 1
        mask = _joint_mask(query, attn_mask, key_padding_mask, samples, num_heads, extra)
        q, k, v = (x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2) for x in (q, k, v))
        probabilities: Tensor | None = None
        if need_weights:
            scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-1, -2)
            probabilities = F.softmax(scores if mask is None else scores + mask, dim=-1)
            heads = probabilities @ v
            probabilities = probabilities.mean(1) if average_attn_weights else probabilities
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask)
        out = F.linear(heads.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias)
        if batched:
            return out.transpose(0, 1), probabilities
        return out.squeeze(0), None if probabilities is None else probabilities.squeeze(0)


def _joint_mask(
    query: Tensor, attention: Tensor | None, padding: Tensor | None, samples: int, heads: int, extra: int
) -> Tensor | None:
    """Return the sum of both masks as an additive mask, with `extra` unmasked keys that the layer appends."""

    def numbers(mask: Tensor) -> Tensor:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask, -math.inf)
        return F.pad(mask, (0, extra))

    joint = None
    if attention is not None:
        joint = numbers(attention)
        joint = joint.view(samples, heads, *joint.shape[1:]) if joint.dim() == 3 else joint
    if padding is not None:
        keys = numbers(padding).view(samples, 1, 1, -1)
        joint = keys if joint is None else joint + keys
    return joint


def gated_linear_unit(context: Propagation, function: Callable[..., Any], input: Any, dim: int = -1) -> Any:
    """Read `glu`."""
    if not live(input):
        return function(input, dim)
    with context.reading():
        value, gate = input.chunk(2, dim)
        return value * gate.sigmoid()


def interpolate_linearly(context: Propagation, function: Callable[..., Any], input: Any, end: Any, weight: Any) -> Any:
    """Read `lerp`."""
    if not any(map(live, (input, end, weight))):
        return function(input, end, weight)
    with context.reading():
        return input + weight * (end - input)


def _added_to(combine: Callable[[Any, Any], Any]) -> Reader:
    """Return the reader of `addcmul` or `addcdiv`: a product or a quotient that is added to a tensor."""

    def read(
        context: Propagation,
        function: Callable[..., Any],
        input: Any,
        tensor1: Any,
        tensor2: Any,
        *,
        value: float = 1,
    ) -> Any:
        if not any(map(live, (input, tensor1, tensor2))):
            return function(input, tensor1, tensor2, value=value)
        with context.reading():
            return input + value * combine(tensor1, tensor2)

    return read


def cosine_similarity(
    context: Propagation, function: Callable[..., Any], x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8
) -> Any:
    """Read `cosine_similarity`: the product of two normalised tensors."""
    if not (live(x1) or live(x2)):
        return function(x1, x2, dim, eps)
    with context.reading():
        x1, x2 = torch.broadcast_tensors(x1, x2)  # type: ignore[no-untyped-call]
        a, b = (x / torch.linalg.vector_norm(x, dim=dim, keepdim=True).clamp_min(eps) for x in (x1, x2))
        return (a * b).sum(dim)


def statistic_and_mean(
    context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Read `std_mean` and `var_mean`, of whose two results only the mean is linear."""
    if not live(input):
        return function(input, *args, **kwargs)  # type: ignore[no-any-return]
    axes = kwargs.get("dim", args[0] if args and not isinstance(args[0], bool) else None)
    with context.reading():
        spread = getattr(torch, function.__name__.removesuffix("_mean"))(input, *args, **kwargs)
        return spread, input.mean(axes, keepdim=bool(input.dim()) and spread.dim() == input.dim())


def _in_place(out_of_place: Callable[..., Any], read: Reader) -> Reader:
    """Return the reader of the in-place version of a call."""

    def read_in_place(context: Propagation, function: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
        if not live(x) and not any(map(live, args)):
            return function(x, *args, **kwargs)
        return computed_on_copy(context, x, lambda copy: read(context, out_of_place, copy, *args, **kwargs))

    return read_in_place


_INTERPOLATING: dict[str, Reader] = {
    "lerp": interpolate_linearly,
    "addcmul": _added_to(operator.mul),
    "addcdiv": _added_to(operator.truediv),
}


READERS: dict[str, Reader] = {
    **dict.fromkeys(("std_mean", "var_mean"), statistic_and_mean),
    **{f"{name}_": _in_place(getattr(torch, name), read) for name, read in _INTERPOLATING.items()},
    **_INTERPOLATING,
    "cosine_similarity": cosine_similarity,
    "multi_head_attention_forward": multi_head_attention,
    "glu": gated_linear_unit,
}
