"""Norms in one call: LayerNorm, RMSNorm, GroupNorm and others. `patterns` recognises norms written in several calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import Error
from ..frozen_factors import with_value
from ..kernels import kernels_available
from .tensors import PlainFunction, in_float32, live

if TYPE_CHECKING:
    from ..context import Propagation
    from .tensors import Reader


class FrozenLayerNorm(PlainFunction):
    """A LayerNorm with the gradient of (x - mean) times a constant: the LN-rule."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: list[int], weight: Any, bias: Any, eps: float) -> Tensor:
        value, _, scale = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(scale, weight)
        ctx.shape = shape
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scale, weight = ctx.saved_tensors
        # scale * (g - mean g): the mean is live, detaching it would break conservation (Ali et al. 2022, section 4.2).
        with torch._C.DisableTorchFunction():  # the context is active for checkpoints, and must not intercept this
            has_leaf = ctx.needs_input_grad[3]
            if kernels_available(scale.device):
                from ..kernels.norm_gradient import fits, norm_gradient

                if fits(grads[0], scale, weight):
                    of_leaf = grads[0].reshape(-1, *ctx.shape).sum(0) if has_leaf else None
                    return norm_gradient(grads[0], scale, weight), None, None, of_leaf, None
            # Torch's own backward has a third term, y mean(g y), which differentiates the scale: it vanishes if zeros
            # are passed for the normalised values y.
            zeros = torch.zeros_like(grads[0], memory_format=torch.contiguous_format)
            none, wanted = torch.zeros_like(scale), (True, False, has_leaf)
            # Of the bias only the shape matters: the bias itself is not saved, so that it may be changed in place.
            like = zeros.new_empty(ctx.shape) if has_leaf and weight is None else weight
            grad, _, of_leaf = _layer_norm_backward(grads[0], zeros, ctx.shape, none, scale, weight, like, wanted)
        return grad, None, None, of_leaf, None


_layer_norm_backward = torch.ops.aten.native_layer_norm_backward.default


class FrozenScale(PlainFunction):
    """A norm's value with the gradient of (x - mean) times a constant: the LN-rule. RMSNorm has no mean."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, value: list[Tensor], scale: Tensor, weight: Any, axes: tuple[int, ...], centred: bool
    ) -> Tensor:
        ctx.save_for_backward(scale, weight)
        ctx.axes, ctx.centred, ctx.dtype = axes, centred, x.dtype
        return value[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scale, weight = ctx.saved_tensors
        grad = in_float32(grads[0])
        grad = grad * (scale if weight is None else weight)  # a new tensor, which may be changed in place
        if ctx.centred:  # the mean is live: detaching it would break conservation (Ali et al. 2022, section 4.2)
            grad -= grad.mean(ctx.axes, keepdim=True)
        if weight is not None:
            grad *= scale
        return grad.to(ctx.dtype), None, None, None, None, None


def _freeze(
    context: Propagation,
    x: Tensor,
    value: Tensor,
    scale: Tensor,
    weight: Any,
    axes: tuple[int, ...],
    centred: bool,
    bias: Any = None,
) -> Tensor:
    if context.frozen_factors is not None:
        value = context.frozen_factors.normed(in_float32(x), lambda: scale, axes, centred, weight, bias).to(value.dtype)
    return FrozenScale.apply(x, [value], scale, weight, axes, centred)  # type: ignore[no-any-return]


def _deviation(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """Return 1 / sqrt(variance + eps)."""
    return torch.rsqrt(in_float32(x.detach()).var(axes, correction=0, keepdim=True) + eps)


def _affine_by_hand(read: Reader, at: int, channels_first: bool) -> Reader:
    """Return the reader of a norm whose weight or bias may be live: these are applied by separate calls."""

    def read_separately(
        context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any
    ) -> Any:
        for each in (*args, *kwargs.values()):
            if live(each):
                break
        else:
            return read(context, function, input, *args, **kwargs)
        given = dict(zip(("weight", "bias"), args[at : at + 2], strict=False)) | kwargs
        weight, bias = given.get("weight"), given.get("bias")
        plain = [None if at <= i < at + 2 else arg for i, arg in enumerate(args)]
        out = read(context, function, input, *plain, **{**kwargs, **dict.fromkeys({"weight", "bias"} & set(kwargs))})
        shape = (-1, *[1] * (input.dim() - 2)) if channels_first else None
        with context.reading():
            for operand, apply in ((weight, torch.mul), (bias, torch.add)):
                if operand is not None:
                    out = apply(out, operand if shape is None else operand.view(shape))
        return out

    return read_separately


def layer_norm(
    context: Propagation,
    function: Callable[..., Any],
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    """Read `layer_norm`."""
    if not live(input):
        return function(input, normalized_shape, weight, bias, eps)
    leaf = None
    if context.rule_for("norm", function).differentiates:
        out = function(input, normalized_shape, weight, bias, eps)
    else:
        given: tuple[Any, ...] = (input, weight, bias)
        if input.is_cuda and torch.is_autocast_enabled(
            "cuda"
        ):  # CUDA's autocast computes norms in float32, the CPU's does not
            given = tuple(x.float() if isinstance(x, Tensor) else x for x in given)
        x, scale, offset = given
        leaf = context.record_leaf(offset)
        out = FrozenLayerNorm.apply(x, list(normalized_shape), scale, offset if leaf is None else leaf, eps)
        if context.frozen_factors is not None:
            axes = tuple(range(-len(normalized_shape), 0))
            value = context.frozen_factors.normed(x, lambda: _deviation(x, axes, eps), axes, True, scale, offset)
            out = with_value(out, value)
    if bias is not None and leaf is None:
        context.record_constant(out, bias)
    return out


def rms_norm(
    context: Propagation,
    function: Callable[..., Any],
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    eps: float | None = None,
) -> Any:
    """Read `rms_norm`."""
    if not live(input):
        return function(input, normalized_shape, weight, eps)
    if context.rule_for("norm", function).differentiates:
        return function(input, normalized_shape, weight, eps)
    axes = tuple(range(-len(normalized_shape), 0))
    with torch.no_grad():
        value = function(input, normalized_shape, weight, eps)
        square = in_float32(input).square().mean(axes, keepdim=True)
        scale = torch.rsqrt(square + (torch.finfo(input.dtype).eps if eps is None else eps))
    return _freeze(context, input, value, scale, weight, axes, False)


def group_norm(
    context: Propagation,
    function: Callable[..., Any],
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    """Read `group_norm`: a LayerNorm over each group of channels, with a weight for each channel."""
    if not live(input):
        return function(input, num_groups, weight, bias, eps)
    channels = (-1, *[1] * (input.dim() - 2))
    if context.rule_for("norm", function).differentiates:
        out = function(input, num_groups, weight, bias, eps)
    else:
        groups = input.unflatten(1, (num_groups, -1))  # type: ignore[no-untyped-call]
        axes = tuple(range(2, groups.dim()))
        with torch.no_grad():
            value = function(input, num_groups, weight, bias, eps).view_as(groups)
            value = value.clone()  # an autograd function's output that is a view cannot be changed in place
            each, offset = (
                None if x is None else x.view(channels).expand(input.shape[1:]).reshape(groups.shape[1:])
                for x in (weight, bias)
            )
            scale = _deviation(groups, axes, eps)
        out = _freeze(context, groups, value, scale, each, axes, True, offset).flatten(1, 2)
    context.record_constant(out, None if bias is None else bias.view(channels), of=bias)
    return out


def batch_norm(
    context: Propagation,
    function: Callable[..., Any],
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *rest: Any,
) -> Any:
    """Read `batch_norm` with running statistics: a linear map and a constant."""
    if live(input) and training:
        raise Error("A batch norm of the model is in training mode, which mixes samples: call model.eval() first.")
    if not live(input):
        return function(input, running_mean, running_var, weight, bias, training, momentum, eps, *rest)
    context.rule_for("linear", function)
    channels = (-1, *[1] * (input.dim() - 2))
    with torch.no_grad():
        value = function(input, running_mean, running_var, weight, bias, training, momentum, eps, *rest)
        scale = torch.rsqrt(in_float32(running_var) + eps) * (1.0 if weight is None else weight)
        offset = -running_mean * scale if bias is None else bias - running_mean * scale
    # Not with torch's own gradient, which is wrong on a CPU for a single sample in channels-last layout.
    out = _freeze(context, input, value, scale.view(channels), None, (), False, offset.view(channels))
    context.record_constant(out, offset.view(channels), of=bias)
    return out


def instance_norm(
    context: Propagation,
    function: Callable[..., Any],
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *rest: Any,
) -> Any:
    """Read `instance_norm`: a GroupNorm with a group for each channel, or a batch norm with running statistics."""
    if not live(input) or not use_input_stats:
        if live(input):
            return batch_norm(context, F.batch_norm, input, running_mean, running_var, weight, bias, False, 0.0, eps)
        return function(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps, *rest)
    return group_norm(context, F.group_norm, input, input.shape[1], weight, bias, eps)


def normalize(
    context: Propagation,
    function: Callable[..., Any],
    input: Any,
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
    out: None = None,
) -> Any:
    """Read `normalize`: division by a vector norm."""
    if not live(input) or context.rule_for("norm", function).differentiates:
        return function(input, p, dim, eps)
    return input / context.frozen(input).norm(p, dim, keepdim=True).clamp_min(eps)


def renorm(context: Propagation, function: Callable[..., Any], input: Any, p: float, dim: int, maxnorm: float) -> Any:
    """Read `renorm`: slices whose norm is larger than a limit are scaled down to it."""
    if not live(input) or context.rule_for("norm", function).differentiates:
        return function(input, p, dim, maxnorm)
    axes = [axis for axis in range(input.dim()) if axis != dim % input.dim()]
    length = torch.linalg.vector_norm(context.frozen(input), p, axes, keepdim=True)
    return input * torch.where(length > maxnorm, maxnorm / (length + 1e-7), torch.ones_like(length))


READERS: dict[str, Reader] = {
    "layer_norm": _affine_by_hand(layer_norm, 1, channels_first=False),
    "rms_norm": _affine_by_hand(rms_norm, 1, channels_first=False),
    "group_norm": _affine_by_hand(group_norm, 1, channels_first=True),
    "batch_norm": _affine_by_hand(batch_norm, 2, channels_first=True),
    "instance_norm": _affine_by_hand(instance_norm, 2, channels_first=True),
    "normalize": normalize,
    "renorm": renorm,
}
