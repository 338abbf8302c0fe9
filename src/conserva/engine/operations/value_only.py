"""Fused attention under the AH-rule: probabilities are constants, so the backward pass is dV = P^T dO and no more.

The forward pass is torch's own kernel, the one it would have chosen, asked for the logarithm of every softmax
denominator as well; from that P is made anew, a block at a time, and never stored.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.attention import SDPBackend

from ..kernels import at_hand
from .attention_masks import Sight, sight_of
from .tensors import in_float32

if TYPE_CHECKING:
    from ..memory import Keeper

LARGEST_HEAD = 256
"""The head size up to which the GPU kernel works."""

ELEMENTS_AT_ONCE = 2**19
"""How many probabilities are made at a time where no GPU kernel is at hand: as many as a cache holds."""

SHORT = {"cpu": 512, "cuda": 8192}
"""Device -> how many queries there must be: below, torch's own kernel is as fast and costs less Python."""

WITHOUT_GROUPS = {"cuda": "efficient"}
"""Device -> torch's kernel for float32, which does not know heads in groups."""

CUDNN_LOW = -65504.0
"""What torch adds to the scores of unseen keys for cuDNN, which does not take -inf."""

_FUSED = {
    SDPBackend.FLASH_ATTENTION.value: "flash",
    SDPBackend.EFFICIENT_ATTENTION.value: "efficient",
    SDPBackend.CUDNN_ATTENTION.value: "cudnn",
}


class ValueOnly(Function):
    """Attention's value, read as a constant map times the values."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, query: Tensor, key: Tensor, sight: Sight, kernel: str, keeper: Keeper | None
    ) -> Tensor:
        out, lse = _forward(query, key, value, sight, kernel)
        ctx.sight, ctx.keeper = replace(sight, mask=None), keeper
        ctx.device, ctx.dtype = query.device, value.dtype
        kept = (query, key) if keeper is None else (keeper.pack(query), keeper.pack(key))
        ctx.save_for_backward(*kept, lse, sight.mask)  # where a change in place is found out
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, lse, mask = ctx.saved_tensors
        sight = replace(ctx.sight, mask=mask)
        # The context is there for checkpoints, and would see every call; a user's autocast would change types.
        with torch._C.DisableTorchFunction(), torch.autocast(ctx.device.type, enabled=False):
            if ctx.keeper is not None:
                query, key = ctx.keeper.unpack(query, ctx.device), ctx.keeper.unpack(key, ctx.device)
            made = _backward(query, key, grads[0], lse, sight).to(ctx.dtype)
        return made, None, None, None, None, None


def _backward(query: Tensor, key: Tensor, grad: Tensor, lse: Tensor, sight: Sight) -> Tensor:
    if not query.is_cuda:
        return values_gradient_in_blocks(query, key, grad, lse, sight)
    from ..kernels.values_gradient import values_gradient

    how: dict[str, Any] = {"is_causal": sight.is_causal, "window": sight.window, "scale": sight.scale}
    return values_gradient(query, key, grad, lse, mask=sight.mask, **how)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    keeper: Keeper | None = None,
) -> tuple[Tensor | None, str]:
    """Return attention whose gradient reaches the values alone, and by which kernels.

    Where only the plain call can make it, or makes it as fast, nothing is returned, and why.
    """
    reason = _left_to_torch(query, key, value, mask)
    if reason:
        return None, f"plain: {reason}"
    sight = sight_of(query, mask, is_causal, scale)
    kernel = _kernel(query, key, value, sight)
    if kernel is None:
        return None, "plain: torch's kernel for it gives no log-sum-exp"
    if kernel == "cudnn" and sight.mask is not None and sight.mask.dtype == torch.bool:
        # As torch has it for this kernel: a query that sees no key sees all of them alike.
        sight = replace(sight, mask=_as_numbers(sight.mask, query, key, CUDNN_LOW))
    out = ValueOnly.apply(value, query, key, sight, kernel, keeper)  # type: ignore[no-untyped-call]
    return out, f"value-only: {kernel}"


def _left_to_torch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> str:
    """Return why the plain call is taken, or nothing."""
    for x in (query, key, value):
        if type(x) is not Tensor or x.dim() != 4 or x.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(x):
            return "not a batch of heads"
    if not query.numel() or not key.numel() or not value.numel():
        return "empty"
    # Where scores may drown in a mask, torch's own gradient on a CPU gives every key the weight 1.
    drowns = query.device.type == "cpu" and mask is not None and mask.dtype != torch.bool
    if query.shape[2] < SHORT.get(query.device.type, 0) and not drowns:
        return "short"
    device, largest = query.device.type, max(query.shape[-1], value.shape[-1])
    if device == "cpu":
        if query.dtype not in (torch.float32, torch.float64, torch.bfloat16) or query.shape[-1] != value.shape[-1]:
            return "no kernel for its type or size"
    elif not at_hand(query.device):
        return "no Triton for its device"
    elif largest > LARGEST_HEAD or query.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"heads of {largest} in {query.dtype}"
    if key.shape[1] != value.shape[1] or query.shape[1] % key.shape[1] or query.shape[0] != key.shape[0]:
        return "heads that do not divide into groups"
    if not query.dtype == key.dtype == value.dtype or (
        mask is not None and mask.dtype not in (torch.bool, query.dtype)
    ):
        return "mixed types"
    return "" if value.shape[0] == key.shape[0] else "batches that differ"


def _kernel(query: Tensor, key: Tensor, value: Tensor, sight: Sight) -> str | None:
    """Return the kernel that torch would run, if it yields what the backward pass needs."""
    if query.device.type == "cpu":
        # Grouped heads are repeated for it, and masks expanded, so it is asked about the rest.
        heads = query[:, :: query.shape[1] // key.shape[1]]
        chosen = torch._fused_sdp_choice(heads, key, value, None, 0.0, sight.is_causal, scale=sight.scale)
        return "cpu" if _FUSED.get(chosen) == "flash" else None
    grouped = query.shape[1] != key.shape[1]
    if grouped and _writes_out_groups(query, key, value, sight.mask, sight.is_causal):
        kernel: str | None = "efficient"
    else:
        kernel = _FUSED.get(
            torch._fused_sdp_choice(
                query, key, value, sight.mask, 0.0, sight.is_causal, scale=sight.scale, enable_gqa=grouped
            )
        )
    if sight.window and kernel in ("flash", "cudnn"):
        kernel = "flash"  # which alone has windows, and takes what the other takes
    if kernel != "flash":
        return None if sight.window else kernel
    whole = query.shape[-1] == value.shape[-1] and query.shape[-1] % 8 == 0  # torch's own call would pad
    return kernel if whole and all(x.stride(-1) == 1 for x in (query, key, value)) else None


def repeated(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
) -> tuple[Tensor, Tensor] | None:
    """Return keys and values for each head of its own, where torch would write out what a group of heads sees."""
    are_heads = all(type(x) is Tensor and not x.is_nested and x.dim() == 4 for x in (query, key, value))
    if not are_heads or not _writes_out_groups(query, key, value, mask, is_causal):
        return None
    return _for_each(query, key), _for_each(query, value)


def _writes_out_groups(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool) -> bool:
    """Return whether torch has a fused kernel for such heads, but not in groups: there it makes all probabilities."""
    groups = key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0
    if query.device.type not in WITHOUT_GROUPS or query.dtype != torch.float32 or not groups:
        return False
    if torch._fused_sdp_choice(query, key, value, mask, 0.0, is_causal, enable_gqa=True) in _FUSED:
        return False
    # Asked about as many queries as there are keys: what is chosen does not depend on how many heads there are.
    heads = query[:, : key.shape[1]]
    mask = mask if mask is None or mask.dim() < 4 else mask[:, : key.shape[1]]
    chosen = torch._fused_sdp_choice(heads, key, value, mask, 0.0, is_causal)
    return _FUSED.get(chosen) == WITHOUT_GROUPS[query.device.type]


def _for_each(query: Tensor, x: Tensor) -> Tensor:
    """Return keys or values once for each query's head."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], 1)


def _forward(query: Tensor, key: Tensor, value: Tensor, sight: Sight, kernel: str) -> tuple[Tensor, Tensor]:
    """Return attention's output, and the logarithm of each query's denominator."""
    mask = None if sight.mask is None else _as_numbers(sight.mask, query, key)
    causal, scale = sight.is_causal, sight.scale
    found: Any
    if kernel in ("cpu", "efficient") and query.shape[1] != key.shape[1]:
        key, value = _for_each(query, key), _for_each(query, value)
    if kernel == "cpu":
        found = torch._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
    elif kernel == "flash" and sight.window:
        places = [x.transpose(1, 2) for x in (query, key, value)]
        found = torch.ops.aten._flash_attention_forward(
            *places, None, None, query.shape[2], key.shape[2], 0.0, causal, False,
            scale=scale, window_size_left=sight.window - 1, window_size_right=0 if causal else sight.window - 1,
        )  # fmt: skip
        return found[0].transpose(1, 2), found[1]
    elif kernel == "flash":
        found = torch._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=scale)
    elif kernel == "cudnn":
        found = torch._scaled_dot_product_cudnn_attention(query, key, value, mask, True, 0.0, causal, scale=scale)
    else:
        found = torch._scaled_dot_product_efficient_attention(
            query, key, value, mask, compute_log_sumexp=True, is_causal=causal, scale=scale
        )
    out, lse = found[0], found[1]
    if lse.dim() == 4:  # cuDNN keeps the axis that it sums over
        lse = lse.squeeze(-1)
    return out, lse[:, :, : query.shape[2]]  # one kernel rounds the places up


def _as_numbers(mask: Tensor, query: Tensor, key: Tensor, low: float = -math.inf) -> Tensor:
    """Return a mask as numbers to add, `low` where nothing is seen, every row on a border that all kernels take."""
    keys = key.shape[2]
    mask = mask.expand(*mask.shape[:-1], keys)
    if mask.dtype == torch.bool or mask.stride(-1) != 1 or any(n % 8 for n in mask.stride()[:-1]):
        numbers = torch.empty(*mask.shape[:-1], -(-keys // 16) * 16, dtype=query.dtype, device=query.device)[..., :keys]
        mask = numbers.zero_().masked_fill_(~mask, low) if mask.dtype == torch.bool else numbers.copy_(mask)
    return mask.expand(*query.shape[:3], keys)


def values_gradient_in_blocks(query: Tensor, key: Tensor, grad: Tensor, lse: Tensor, sight: Sight) -> Tensor:
    """Return dV, a block of queries at a time: what the GPU kernel does, in torch's own calls."""
    samples, heads, queries, _ = query.shape
    keys, group = key.shape[2], heads // key.shape[1]
    key = key.repeat_interleave(group, 1) if group > 1 else key
    query, key, grad = (in_float32(x).flatten(0, 1) for x in (query, key, grad))
    # A query that sees no key takes nothing, as torch has it: its denominator is as good as infinite.
    denominator = lse.masked_fill(lse == -math.inf, math.inf).neg().to(query.dtype).flatten(0, 1).unsqueeze(-1)
    across, total = key.transpose(-1, -2), grad.new_zeros(samples * heads, keys, grad.shape[-1])
    rows = max(16, min(queries, ELEMENTS_AT_ONCE // (samples * heads * keys)))
    for start in range(0, queries, rows):
        end = min(start + rows, queries)
        seen = min(end, keys) if sight.is_causal else keys  # no later key is seen by any of these
        scores = torch.baddbmm(
            denominator[:, start:end], query[:, start:end], across[..., :seen], alpha=sight.scale
        )  # fmt: skip
        if sight.mask is not None:
            mask = sight.mask.expand(samples, heads, queries, keys)[:, :, start:end, :seen]
            by_head = scores.view(samples, heads, end - start, seen)
            by_head.masked_fill_(~mask, -math.inf) if mask.dtype == torch.bool else by_head.add_(mask)
        probabilities = scores.exp_()
        if sight.mask is not None and sight.mask.dtype != torch.bool:
            # Numbers so low that scores drown in them leave a query nothing to choose by: all keys alike.
            low = -denominator[:, start:end]
            probabilities.masked_fill_((low < -1e30) & (low > -math.inf), 1 / keys)
        if sight.is_causal:
            probabilities[..., start:].tril_()
        total[:, :seen].baddbmm_(probabilities.transpose(-1, -2), grad[:, start:end])
    by_group = total.view(samples, heads // group, group, keys, -1)
    return by_group.sum(2) if group > 1 else by_group.squeeze(2)
