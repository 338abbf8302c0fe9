"""Large activations, alone or as the gate of a product, with few tensors saved for the backward pass.

For `down(silu(gate(x)) * up(x))` torch saves three tensors as wide as the MLP. Two are enough, because silu(gate) can
be recomputed; none is needed if gate and up are recomputed from x, which is narrower and shared. The gradient is then
computed for a few rows at a time and passed directly to x, so that the incoming gradient is the only tensor as wide as
the MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ..kernels import kernels_available
from ..memory import Keeper
from .elementwise import Activation, Trail, is_nonlinear, known_trail
from .linear_origins import LinearOrigin, linear_origin_of
from .tensors import PlainFunction

if TYPE_CHECKING:
    from ..context import Propagation

    Back = Callable[..., Sequence[Tensor | None]]
    """Returns the gradients of all factors, given the incoming gradient and the factors' values, for some rows."""

PIECE_BYTES = 2**26
"""The size of the rows of a tensor that the backward pass computes at a time."""


@dataclass(frozen=True)
class Factor:
    """A factor of a fused function: what is saved of it, and which tensor gets its gradient."""

    kept: Tensor | None
    """The factor, or the input of the linear layer that recomputes it, or None if its value is not needed."""
    link: Tensor | None
    """The factor, or the input of its linear layer, or None if it is a constant."""
    weight: Tensor | None = None
    bias: Tensor | None = None
    recomputed: bool = False
    """Whether `kept` is the input of the linear layer."""
    through: bool = False
    """Whether `link` is the input of the linear layer."""

    @classmethod
    def of(cls, context: Propagation, x: Tensor, *, valued: bool = True, linked: bool = True) -> Factor:
        """Return `x` as a factor.

        Parameters
        ----------
        context
            The context of the forward pass.
        x
            The factor.
        valued
            Whether the backward pass needs its value.
        linked
            Whether it gets a gradient.
        """
        keeper, layer = _keeper(context), linear_origin_of(x)
        whole = not valued or keeper.keeps_whole(x)
        if layer is None:
            return cls(keeper.pack(x) if valued else None, x if linked else None)
        origin, given = layer
        through = linked and _may_bypass(context, origin)
        if through:
            _mark_bypassed(context, x)
        link = given if through else x if linked else None
        weight = origin.weight if through or not whole else None
        if whole:
            return cls(keeper.pack(x) if valued else None, link, weight, through=through)
        keeper.recomputes()
        return cls(keeper.pack(given), link, weight, origin.bias, recomputed=True, through=through)


def _may_bypass(context: Propagation, origin: LinearOrigin) -> bool:
    """Return whether a gradient may bypass the output of a linear layer and go directly to its input.

    It may not if the ledger records a bias at that output, nor if softmaxes are differentiated: the search for nodes
    inside softmaxes needs the matrix products.
    """
    return context.constants is None or (origin.bias is None and context.rules.attention.freezes)


def _mark_bypassed(context: Propagation, x: Tensor) -> None:
    context.attributes.set(x, "conserva_bypassed", True)


def is_bypassed(x: Tensor) -> bool:
    """Return whether some relevance bypasses `x` and goes directly to a tensor that it was computed from."""
    return "conserva_bypassed" in x.__dict__


class Fused(Function):
    """A value that was computed before; its gradient is computed for all factors, a few rows at a time."""

    @staticmethod
    def forward(ctx: Any, value: list[Tensor], back: Back, factors: Sequence[Factor], *links: Tensor) -> Tensor:
        ctx.back, ctx.device = back, value[0].device
        ctx.shapes = [link.shape for link in links]
        number = {id(link): i for i, link in enumerate(links)}
        ctx.how = [(factor.recomputed, factor.through, number.get(id(factor.link))) for factor in factors]
        ctx.save_for_backward(*[x for factor in factors for x in (factor.kept, factor.weight, factor.bias)])
        return value[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, how = ctx.saved_tensors, ctx.how
        with torch._C.DisableTorchFunction():
            incoming = grads[0].reshape(-1, grads[0].shape[-1])
            rows = len(incoming)
            kept, weights, biases = _in_rows(saved[::3], ctx.device), saved[1::3], saved[2::3]
            step = max(1, PIECE_BYTES // (incoming.shape[1] * incoming.element_size()))
            results = [_Gradient(incoming, shape) for shape in ctx.shapes]
            for start in range(0, rows, step):
                piece = slice(start, start + step)
                values = [
                    None if x is None else F.linear(x[piece], weight, bias) if recomputed else x[piece]
                    for x, weight, bias, (recomputed, _, _) in zip(kept, weights, biases, how, strict=True)
                ]
                for grad, weight, (_, through, link) in zip(
                    ctx.back(incoming[piece], *values), weights, how, strict=True
                ):
                    if grad is not None and link is not None:
                        results[link].add(piece, grad, weight if through else None)
            return (None, None, None, *[result.complete() for result in results])


class FusedActivation(PlainFunction):
    """An activation under the rule `ratio`, whose ratio is computed in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: Activation) -> Tensor:
        ctx.save_for_backward(x.detach())
        ctx.activation = activation
        ctx.elementwise = activation.name or activation.again.function.__name__
        ctx.exponential, ctx.limits = activation.is_exponential, activation
        return activation.again(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        with torch._C.DisableTorchFunction():
            return _activation_gradient(ctx.activation, grads[0], x), None


class FusedGate(PlainFunction):
    """A product `f(x) * up` whose factors are saved and whose gradient is computed for all rows at once."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, up: Tensor, value: list[Tensor], activation: Activation, share: float, keeper: Keeper
    ) -> Tensor:
        ctx.save_for_backward(keeper.pack(x), keeper.pack(up))
        ctx.activation, ctx.share, ctx.device = activation, share, x.device
        return value[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, up = ctx.saved_tensors
        with torch._C.DisableTorchFunction():
            x, up = Keeper.unpack(x, ctx.device), Keeper.unpack(up, ctx.device)
            return (*_gate_gradients(ctx.activation, ctx.share, grads[0], x, up), None, None, None, None)


class _Gradient:
    """The gradient of one linked tensor, accumulated for a few rows at a time."""

    def __init__(self, incoming: Tensor, shape: torch.Size) -> None:
        self._incoming, self._shape = incoming, shape
        self._rows: Tensor | None = None
        self._last_start = -1

    def add(self, piece: slice, grad: Tensor, weight: Tensor | None) -> None:
        """Add a gradient to some rows, multiplied by the weight of a linear layer if there is one."""
        begun, self._last_start = self._last_start == piece.start, piece.start
        if self._rows is None and len(grad) == len(self._incoming):
            self._rows = grad if weight is None else grad @ weight  # all rows at once
            return
        if self._rows is None:
            self._rows = self._incoming.new_empty(len(self._incoming), self._shape[-1])
        rows = self._rows[piece]
        if weight is None:
            rows.copy_(rows + grad if begun else grad)
        elif begun:
            rows.addmm_(grad, weight)
        else:
            torch.mm(grad, weight, out=rows)

    def complete(self) -> Tensor | None:
        """Return the gradient in the shape of the linked tensor."""
        return None if self._rows is None else self._rows.view(self._shape)


def _in_rows(kept: Sequence[Tensor | None], device: torch.device) -> list[Tensor | None]:
    """Return saved tensors on their device as matrices; each is transferred only once."""
    transferred: dict[object, Tensor] = {}
    matrices: list[Tensor | None] = []
    for x in kept:
        key = None if x is None else (x.data_ptr(), x.shape, x.stride(), x.dtype)
        if x is not None and key not in transferred:
            transferred[key] = Keeper.unpack(x, device).reshape(-1, x.shape[-1])
        matrices.append(None if x is None else transferred[key])
    return matrices


def _fuse(value: Tensor, back: Back, *factors: Factor) -> Tensor:
    links = {id(factor.link): factor.link for factor in factors if factor.link is not None}
    return Fused.apply([value], back, factors, *links.values())  # type: ignore[no-any-return, no-untyped-call]


def activate(context: Propagation, x: Tensor, activation: Activation) -> Tensor | None:
    """Return f(x) of a large `x`; None if torch's own graph would save as little."""
    recomputed = linear_origin_of(x) is not None and not _keeper(context).keeps_whole(x)
    if not recomputed and not activation.ratio:
        return None
    if not recomputed and x.nbytes <= PIECE_BYTES:
        return FusedActivation.apply(x, activation)  # type: ignore[no-any-return]
    factor = Factor.of(context, x) if recomputed else Factor(x.detach(), x)
    value = activation.again(x.detach())
    return _fuse(value, lambda grad, x: (_activation_gradient(activation, grad, x),), factor)


def gate(context: Propagation, function: Callable[..., Any], a: Tensor, b: Tensor) -> Tensor | None:
    """Return the product of large live tensors if one is the output of an activation; None for other products."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return None
    gate, up, trail, keeper = a, b, _made_whole(a), _keeper(context)
    if trail is None:
        gate, up, trail = b, a, _made_whole(b)
    if trail is None or trail.whole is None:
        return None
    activation, again = trail.whole, trail.whole.again
    constant = context.rules.product.freezes_gate and not is_nonlinear(up)
    if activation.ratio and activation.at_zero and not constant:
        return None  # the ledger records f(0) at the activation, which must not be bypassed
    share = 1.0 if context.rule_for("product", function).differentiates else 0.5
    _mark_bypassed(context, gate)
    value = function(a.detach(), b.detach())
    if not constant and _is_small(trail.source) and _is_small(up):
        return FusedGate.apply(trail.source, up, [value], activation, share, keeper)  # type: ignore[no-any-return]
    if not constant:
        return _fuse(
            value, partial(_gate_gradients, activation, share), Factor.of(context, trail.source), Factor.of(context, up)
        )
    up_only = Factor.of(context, up, valued=False)
    if linear_origin_of(trail.source) is None or keeper.keeps_whole(gate):
        return _fuse(value, lambda grad, gate, _: (None, grad * gate), Factor(keeper.pack(gate), None), up_only)
    recomputed = Factor.of(context, trail.source, linked=False)
    return _fuse(value, lambda grad, x, _: (None, grad * again(x)), recomputed, up_only)


def _is_small(x: Tensor) -> bool:
    """Return whether `x` need not be recomputed, nor its gradient be computed for a few rows at a time."""
    return x.nbytes <= PIECE_BYTES and linear_origin_of(x) is None


def _made_whole(x: Tensor) -> Trail | None:
    """Return the trail of `x` if it is the unchanged output of an activation in one call."""
    trail = known_trail(x)
    if trail is None or trail.whole is None or trail.source.dtype != x.dtype:
        return None
    return trail


def _activation_gradient(activation: Activation, grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of `x`, given that of `f(x)`."""
    if activation.ratio and activation.kind and _fits_kernel(grad, x):
        from ..kernels.gate_gradients import ratio_gradient

        return ratio_gradient(grad, x, kind=activation.kind)
    return activation.back(grad, x)[0]


def _gate_gradients(activation: Activation, share: float, grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of `x` and `up`, given that of `f(x) * up`; each factor gets a share of it."""
    if activation.kind and _fits_kernel(grad, x, up):
        from ..kernels.gate_gradients import gate_gradients

        return gate_gradients(grad, x, up, kind=activation.kind, ratio=activation.ratio, share=share)
    grad_gate = grad * up
    grad_x, value = activation.back(grad_gate if share == 1 else grad_gate.mul_(share), x)
    grad_up = value * grad
    return grad_x, grad_up if share == 1 else grad_up.mul_(share)


def _fits_kernel(*tensors: Tensor) -> bool:
    same = all(x.dtype == tensors[0].dtype and x.is_contiguous() for x in tensors)
    return same and tensors[0].dtype != torch.float64 and kernels_available(tensors[0].device)


def _keeper(context: Propagation) -> Keeper:
    assert context.keeper is not None  # checked by the callers
    return context.keeper
