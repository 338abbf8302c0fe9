"""Fused attention under the AH-rule: probabilities are constants, so the backward pass is only dV = P^T dO.

The forward pass runs the kernel that torch would choose, with the log-sum-exp of every query as a further output; from
it the backward pass recomputes P block by block, without storing it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.attention import SDPBackend

from ..kernels import kernels_available
from .attention_masks import Visibility, visibility_of
from .tensors import in_float32

if TYPE_CHECKING:
    from ..memory import Keeper

LARGEST_HEAD = 256
"""The largest head size that the GPU kernel supports."""

ELEMENTS_AT_ONCE = 2**19
"""The number of probabilities that are computed at a time without a GPU kernel, so that they fit into the CPU cache."""

SHORT = {"cpu": 512, "cuda": 8192}
"""Device -> the number of queries below which torch's own kernel is as fast and has less Python overhead."""

WITHOUT_GROUPS = {"cuda": "efficient"}
"""Device -> torch's float32 kernel, which does not support grouped-query attention."""

CUDNN_LOW = -65504.0
"""The number that torch adds to the scores of masked keys for cuDNN, which does not support -inf."""

_FUSED = {
    SDPBackend.FLASH_ATTENTION.value: "flash",
    SDPBackend.EFFICIENT_ATTENTION.value: "efficient",
    SDPBackend.CUDNN_ATTENTION.value: "cudnn",
}


class ValueOnly(Function):
    """Attention whose probabilities are constants: the gradient reaches the values only."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, query: Tensor, key: Tensor, visibility: Visibility, kernel: str, keeper: Keeper | None
    ) -> Tensor:
        out, lse = _forward(query, key, value, visibility, kernel)
        ctx.visibility, ctx.keeper = replace(visibility, mask=None), keeper
        ctx.device, ctx.dtype = query.device, value.dtype
        kept = (query, key) if keeper is None else (keeper.pack(query), keeper.pack(key))
        ctx.save_for_backward(*kept, lse, visibility.mask)  # so that autograd detects in-place changes
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, lse, mask = ctx.saved_tensors
        visibility = replace(ctx.visibility, mask=mask)
        # The context is active for checkpoints, and would intercept these calls; a user's autocast would change dtypes.
        with torch._C.DisableTorchFunction(), torch.autocast(ctx.device.type, enabled=False):
            if ctx.keeper is not None:
                query, key = ctx.keeper.unpack(query, ctx.device), ctx.keeper.unpack(key, ctx.device)
            grad_value = _backward(query, key, grads[0], lse, visibility).to(ctx.dtype)
        return grad_value, None, None, None, None, None


def _backward(query: Tensor, key: Tensor, grad: Tensor, lse: Tensor, visibility: Visibility) -> Tensor:
    if not query.is_cuda:
        return values_gradient_in_blocks(query, key, grad, lse, visibility)
    from ..kernels.values_gradient import values_gradient

    how: dict[str, Any] = {"is_causal": visibility.is_causal, "window": visibility.window, "scale": visibility.scale}
    return values_gradient(query, key, grad, lse, mask=visibility.mask, **how)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    keeper: Keeper | None = None,
) -> tuple[Tensor | None, str]:
    """Return attention whose gradient reaches the values only.

    Parameters
    ----------
    query, key, value, mask, is_causal, scale
        As in `scaled_dot_product_attention`.
    keeper
        The memory plan, if there is one.

    Returns
    -------
    tuple
        The output, and a description of the kernel. If only torch's own call can compute it, or computes it as fast,
        the output is None and the description gives the reason.
    """
    reason = _left_to_torch(query, key, value, mask)
    if reason:
        return None, f"plain: {reason}"
    visibility = visibility_of(query, mask, is_causal, scale)
    kernel = _kernel(query, key, value, visibility)
    if kernel is None:
        return None, "plain: torch's kernel for it does not return the log-sum-exp"
    if kernel == "cudnn" and visibility.mask is not None and visibility.mask.dtype == torch.bool:
        # As torch does for this kernel: a fully masked query attends to all keys equally.
        visibility = replace(visibility, mask=_as_numbers(visibility.mask, query, key, CUDNN_LOW))
    out = ValueOnly.apply(value, query, key, visibility, kernel, keeper)  # type: ignore[no-untyped-call]
    return out, f"value-only: {kernel}"


def _left_to_torch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> str:
    """Return why torch's own call is used, or "" if it is not."""
    for x in (query, key, value):
        if type(x) is not Tensor or x.dim() != 4 or x.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(x):
            return "not a batch of heads"
    if not query.numel() or not key.numel() or not value.numel():
        return "empty"
    # If a float mask absorbs all scores of a query, torch's own gradient on a CPU gives every key the weight 1.
    may_absorb = query.device.type == "cpu" and mask is not None and mask.dtype != torch.bool
    if query.shape[2] < SHORT.get(query.device.type, 0) and not may_absorb:
        return "short"
    device, largest = query.device.type, max(query.shape[-1], value.shape[-1])
    if device == "cpu":
        if query.dtype not in (torch.float32, torch.float64, torch.bfloat16) or query.shape[-1] != value.shape[-1]:
            return "no kernel for its dtype or size"
    elif not kernels_available(query.device):
        return "no Triton for its device"
    elif largest > LARGEST_HEAD or query.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"heads of {largest} in {query.dtype}"
    if key.shape[1] != value.shape[1] or query.shape[1] % key.shape[1] or query.shape[0] != key.shape[0]:
        return "numbers of heads that do not divide"
    if not query.dtype == key.dtype == value.dtype or (
        mask is not None and mask.dtype not in (torch.bool, query.dtype)
    ):
        return "mixed dtypes"
    return "" if value.shape[0] == key.shape[0] else "different batch sizes"


def _kernel(query: Tensor, key: Tensor, value: Tensor, visibility: Visibility) -> str | None:
    """Return the kernel that torch would run, or None if it does not return the log-sum-exp."""
    if query.device.type == "cpu":
        # Grouped heads are repeated and masks expanded for this kernel, so the choice must not depend on them.
        heads = query[:, :: query.shape[1] // key.shape[1]]
        chosen = torch._fused_sdp_choice(heads, key, value, None, 0.0, visibility.is_causal, scale=visibility.scale)
        return "cpu" if _FUSED.get(chosen) == "flash" else None
    grouped = query.shape[1] != key.shape[1]
    if grouped and _writes_out_groups(query, key, value, visibility.mask, visibility.is_causal):
        kernel: str | None = "efficient"
    else:
        kernel = _FUSED.get(
            torch._fused_sdp_choice(
                query,
                key,
                value,
                visibility.mask,
                0.0,
                visibility.is_causal,
                scale=visibility.scale,
                enable_gqa=grouped,
            )
        )
    if visibility.window and kernel in ("flash", "cudnn"):
        kernel = "flash"  # the only one with windows; it supports whatever cuDNN does
    if kernel != "flash":
        return None if visibility.window else kernel
    whole = query.shape[-1] == value.shape[-1] and query.shape[-1] % 8 == 0  # otherwise torch's own call pads
    return kernel if whole and all(x.stride(-1) == 1 for x in (query, key, value)) else None


def repeated(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
) -> tuple[Tensor, Tensor] | None:
    """Return keys and values repeated for each query head, if torch would otherwise materialise all probabilities."""
    are_heads = all(type(x) is Tensor and not x.is_nested and x.dim() == 4 for x in (query, key, value))
    if not are_heads or not _writes_out_groups(query, key, value, mask, is_causal):
        return None
    return _for_each(query, key), _for_each(query, value)


def _writes_out_groups(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool) -> bool:
    """Return whether torch has a fused kernel for these heads only if they are not grouped."""
    groups = key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0
    if query.device.type not in WITHOUT_GROUPS or query.dtype != torch.float32 or not groups:
        return False
    if torch._fused_sdp_choice(query, key, value, mask, 0.0, is_causal, enable_gqa=True) in _FUSED:
        return False
    # With as many query heads as key heads: the choice does not depend on the number of heads.
    heads = query[:, : key.shape[1]]
    mask = mask if mask is None or mask.dim() < 4 else mask[:, : key.shape[1]]
    chosen = torch._fused_sdp_choice(heads, key, value, mask, 0.0, is_causal)
    return _FUSED.get(chosen) == WITHOUT_GROUPS[query.device.type]


def _for_each(query: Tensor, x: Tensor) -> Tensor:
    """Return keys or values repeated for each query head."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], 1)


def _forward(query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, kernel: str) -> tuple[Tensor, Tensor]:
    """Return the output of attention, and the log-sum-exp of each query."""
    mask = None if visibility.mask is None else _as_numbers(visibility.mask, query, key)
    causal, scale, window = visibility.is_causal, visibility.scale, visibility.window
    outputs: Any
    if kernel in ("cpu", "efficient") and query.shape[1] != key.shape[1]:
        key, value = _for_each(query, key), _for_each(query, value)
    if kernel == "cpu":
        outputs = torch._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
    elif kernel == "flash" and visibility.window:
        positions_first = [x.transpose(1, 2) for x in (query, key, value)]
        outputs = torch.ops.aten._flash_attention_forward(
            *positions_first, None, None, query.shape[2], key.shape[2], 0.0, causal, False,
            scale=scale, window_size_left=window - 1, window_size_right=0 if causal else window - 1,
        )  # fmt: skip
        return outputs[0].transpose(1, 2), outputs[1]
    elif kernel == "flash":
        outputs = torch._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=scale)
    elif kernel == "cudnn":
        outputs = torch._scaled_dot_product_cudnn_attention(query, key, value, mask, True, 0.0, causal, scale=scale)
    else:
        outputs = torch._scaled_dot_product_efficient_attention(
            query, key, value, mask, compute_log_sumexp=True, is_causal=causal, scale=scale
        )
    out, lse = outputs[0], outputs[1]
    if lse.dim() == 4:  # cuDNN keeps the reduced dimension
        lse = lse.squeeze(-1)
    return out, lse[:, :, : query.shape[2]]  # the efficient kernel pads the queries


def _as_numbers(mask: Tensor, query: Tensor, key: Tensor, low: float = -math.inf) -> Tensor:
    """Return an additive mask, `low` where keys are masked, with rows aligned as all kernels require."""
    keys = key.shape[2]
    mask = mask.expand(*mask.shape[:-1], keys)
    if mask.dtype == torch.bool or mask.stride(-1) != 1 or any(n % 8 for n in mask.stride()[:-1]):
        numbers = torch.empty(*mask.shape[:-1], -(-keys // 16) * 16, dtype=query.dtype, device=query.device)[..., :keys]
        mask = numbers.zero_().masked_fill_(~mask, low) if mask.dtype == torch.bool else numbers.copy_(mask)
    return mask.expand(*query.shape[:3], keys)


def values_gradient_in_blocks(query: Tensor, key: Tensor, grad: Tensor, lse: Tensor, visibility: Visibility) -> Tensor:
    """Return dV, computed for one block of queries at a time: the GPU kernel in plain torch calls."""
    samples, heads, queries, _ = query.shape
    keys, group = key.shape[2], heads // key.shape[1]
    key = key.repeat_interleave(group, 1) if group > 1 else key
    query, key, grad = (in_float32(x).flatten(0, 1) for x in (query, key, grad))
    # A fully masked query attends to nothing, as in torch: with an infinite denominator its probabilities are 0.
    denominator = lse.masked_fill(lse == -math.inf, math.inf).neg().to(query.dtype).flatten(0, 1).unsqueeze(-1)
    across, total = key.transpose(-1, -2), grad.new_zeros(samples * heads, keys, grad.shape[-1])
    rows = max(16, min(queries, ELEMENTS_AT_ONCE // (samples * heads * keys)))
    for start in range(0, queries, rows):
        end = min(start + rows, queries)
        seen = min(end, keys) if visibility.is_causal else keys  # the keys that some of these queries attend to
        scores = torch.baddbmm(
            denominator[:, start:end], query[:, start:end], across[..., :seen], alpha=visibility.scale
        )  # fmt: skip
        if visibility.mask is not None:
            mask = visibility.mask.expand(samples, heads, queries, keys)[:, :, start:end, :seen]
            by_head = scores.view(samples, heads, end - start, seen)
            by_head.masked_fill_(~mask, -math.inf) if mask.dtype == torch.bool else by_head.add_(mask)
        probabilities = scores.exp_()
        if visibility.mask is not None and visibility.mask.dtype != torch.bool:
            # A mask so low that it absorbs all scores of a query leaves all keys equal.
            low = -denominator[:, start:end]
            probabilities.masked_fill_((low < -1e30) & (low > -math.inf), 1 / keys)
        if visibility.is_causal:
            probabilities[..., start:].tril_()
        total[:, :seen].baddbmm_(probabilities.transpose(-1, -2), grad[:, start:end])
    by_group = total.view(samples, heads // group, group, keys, -1)
    return by_group.sum(2) if group > 1 else by_group.squeeze(2)
