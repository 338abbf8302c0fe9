"""Large activations, alone or as the gate of a product, with little kept for the backward pass.

In `down(silu(gate(x)) * up(x))` torch keeps three tensors as wide as the MLP. Two are enough, for silu(gate) can be
made again; and none is needed where gate and up are made again of x, which is narrower and shared. The gradient is then
taken a few rows at a time and led straight on to x, so that none as wide as the MLP stands in memory but the one that
comes in.
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

from ..kernels import at_hand
from ..memory import Keeper
from .elementwise import Activation, Trail, is_curved, known_trail
from .origins import Origin, origin_of
from .tensors import PlainFunction

if TYPE_CHECKING:
    from ..context import Propagation

    Back = Callable[..., Sequence[Tensor | None]]
    """From some rows of the gradient, and of every factor, to the gradient of every factor there."""

PIECE_BYTES = 2**26
"""How much of a tensor is worked on at a time in the backward pass."""


@dataclass(frozen=True)
class Factor:
    """A tensor that a fused function works on: what is kept of it, and where its gradient goes on."""

    kept: Tensor | None
    """The tensor, or the input of the linear layer that makes it anew, or nothing where its value has no part."""
    link: Tensor | None
    """The tensor, or the input of its linear layer, or nothing where it is a constant."""
    weight: Tensor | None = None
    bias: Tensor | None = None
    remade: bool = False
    through: bool = False

    @classmethod
    def of(cls, context: Propagation, x: Tensor, *, valued: bool = True, linked: bool = True) -> Factor:
        """Decide how `x` is kept: its value is needed or not, and it carries relevance or is a constant."""
        keeper, found = _keeper(context), origin_of(x)
        whole = not valued or keeper.keeps_whole(x)
        if found is None:
            return cls(keeper.pack(x) if valued else None, x if linked else None)
        origin, given = found
        through = linked and _may_pass(context, origin)
        if through:
            _pass_by(context, x)
        link = given if through else x if linked else None
        weight = origin.weight if through or not whole else None
        if whole:
            return cls(keeper.pack(x) if valued else None, link, weight, through=through)
        keeper.recomputes()
        return cls(keeper.pack(given), link, weight, origin.bias, remade=True, through=through)


def _may_pass(context: Propagation, origin: Origin) -> bool:
    """Tell whether a gradient may go past the output of a linear layer, straight to its input.

    A bias is booked at that output. And what lies inside a softmax is found by the matrix products where it ends.
    """
    return context.books is None or (origin.bias is None and context.rules.attention.freezes)


def _pass_by(context: Propagation, x: Tensor) -> None:
    context.notes.put(x, "conserva_passed_by", True)


def was_passed_by(x: Tensor) -> bool:
    """Tell whether some relevance goes past `x`, on to what it was made of."""
    return "conserva_passed_by" in x.__dict__


class Fused(Function):
    """A value computed already; its gradient is led back to some factors, a few rows at a time."""

    @staticmethod
    def forward(ctx: Any, value: list[Tensor], back: Back, factors: Sequence[Factor], *links: Tensor) -> Tensor:
        ctx.back, ctx.device = back, value[0].device
        ctx.shapes = [link.shape for link in links]
        number = {id(link): i for i, link in enumerate(links)}
        ctx.ways = [(factor.remade, factor.through, number.get(id(factor.link))) for factor in factors]
        ctx.save_for_backward(*[x for factor in factors for x in (factor.kept, factor.weight, factor.bias)])
        return value[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, ways = ctx.saved_tensors, ctx.ways
        with torch._C.DisableTorchFunction():
            incoming = grads[0].reshape(-1, grads[0].shape[-1])
            rows = len(incoming)
            kept, weights, biases = _in_rows(saved[::3], ctx.device), saved[1::3], saved[2::3]
            step = max(1, PIECE_BYTES // (incoming.shape[1] * incoming.element_size()))
            results = [_Gathered(incoming, shape) for shape in ctx.shapes]
            for start in range(0, rows, step):
                piece = slice(start, start + step)
                values = [
                    None if x is None else F.linear(x[piece], weight, bias) if remade else x[piece]
                    for x, weight, bias, (remade, _, _) in zip(kept, weights, biases, ways, strict=True)
                ]
                for grad, weight, (_, through, link) in zip(
                    ctx.back(incoming[piece], *values), weights, ways, strict=True
                ):
                    if grad is not None and link is not None:
                        results[link].add(piece, grad, weight if through else None)
            return (None, None, None, *[result.whole() for result in results])


class FusedActivation(PlainFunction):
    """An activation read by its ratio, which is made when the gradient comes: no product after it asks for that."""

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
            return _below(ctx.activation, grads[0], x), None


class FusedGate(PlainFunction):
    """A product `f(x) * up` that is small enough to be worked on in one piece, and whose factors are kept."""

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
            return (*_split(ctx.activation, ctx.share, grads[0], x, up), None, None, None, None)


class _Gathered:
    """The gradient of one link, gathered a piece of its rows at a time."""

    def __init__(self, incoming: Tensor, shape: torch.Size) -> None:
        self._incoming, self._shape = incoming, shape
        self._rows: Tensor | None = None
        self._begun = -1

    def add(self, piece: slice, grad: Tensor, weight: Tensor | None) -> None:
        """Add a gradient, led through a linear layer if there is one, to some rows."""
        begun, self._begun = self._begun == piece.start, piece.start
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

    def whole(self) -> Tensor | None:
        """Return the gradient in the shape of the link."""
        return None if self._rows is None else self._rows.view(self._shape)


def _in_rows(kept: Sequence[Tensor | None], device: torch.device) -> list[Tensor | None]:
    """Bring back what was kept, each tensor once, as a matrix."""
    back: dict[object, Tensor] = {}
    found: list[Tensor | None] = []
    for x in kept:
        key = None if x is None else (x.data_ptr(), x.shape, x.stride(), x.dtype)
        if x is not None and key not in back:
            back[key] = Keeper.unpack(x, device).reshape(-1, x.shape[-1])
        found.append(None if x is None else back[key])
    return found


def _fuse(value: Tensor, back: Back, *factors: Factor) -> Tensor:
    links = {id(factor.link): factor.link for factor in factors if factor.link is not None}
    return Fused.apply([value], back, factors, *links.values())  # type: ignore[no-any-return, no-untyped-call]


def activate(context: Propagation, x: Tensor, activation: Activation) -> Tensor | None:
    """Return f(x) of a large `x`, or nothing where torch's own graph would keep as little."""
    remade = origin_of(x) is not None and not _keeper(context).keeps_whole(x)
    if not remade and not activation.ratio:
        return None
    if not remade and x.nbytes <= PIECE_BYTES:
        return FusedActivation.apply(x, activation)  # type: ignore[no-any-return]
    factor = Factor.of(context, x) if remade else Factor(x.detach(), x)
    value = activation.again(x.detach())
    return _fuse(value, lambda grad, x: (_below(activation, grad, x),), factor)


def gate(context: Propagation, function: Callable[..., Any], a: Tensor, b: Tensor) -> Tensor | None:
    """Return the product of large live tensors if one comes out of an activation; nothing if it is another product."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return None
    gate, up, trail, keeper = a, b, _made_whole(a), _keeper(context)
    if trail is None:
        gate, up, trail = b, a, _made_whole(b)
    if trail is None or trail.whole is None:
        return None
    activation, again = trail.whole, trail.whole.again
    constant = context.rules.product.freezes_gate and not is_curved(up)
    if activation.ratio and activation.at_zero and not constant:
        return None  # f(0) is booked at the activation
    share = 1.0 if context.meet("product", function).differentiates else 0.5
    _pass_by(context, gate)
    value = function(a.detach(), b.detach())
    if not constant and _is_kept_in_one_piece(trail.source) and _is_kept_in_one_piece(up):
        return FusedGate.apply(trail.source, up, [value], activation, share, keeper)  # type: ignore[no-any-return]
    if not constant:
        return _fuse(
            value, partial(_split, activation, share), Factor.of(context, trail.source), Factor.of(context, up)
        )
    up_alone = Factor.of(context, up, valued=False)
    if origin_of(trail.source) is None or keeper.keeps_whole(gate):
        return _fuse(value, lambda grad, gate, _: (None, grad * gate), Factor(keeper.pack(gate), None), up_alone)
    remade = Factor.of(context, trail.source, linked=False)
    return _fuse(value, lambda grad, x, _: (None, grad * again(x)), remade, up_alone)


def _is_kept_in_one_piece(x: Tensor) -> bool:
    """Tell whether nothing is gained by making `x` anew, or by taking its gradient a few rows at a time."""
    return x.nbytes <= PIECE_BYTES and origin_of(x) is None


def _made_whole(x: Tensor) -> Trail | None:
    """Return the trail of `x`, if an activation made it in one call and it is still what that made."""
    trail = known_trail(x)
    if trail is None or trail.whole is None or trail.source.dtype != x.dtype:
        return None
    return trail


def _below(activation: Activation, grad: Tensor, x: Tensor) -> Tensor:
    """Return what an activation by itself hands back to `x`."""
    if activation.ratio and activation.kind and _fits_kernel(grad, x):
        from ..kernels.gate_gradients import ratio_gradient

        return ratio_gradient(grad, x, kind=activation.kind)
    return activation.back(grad, x)[0]


def _split(activation: Activation, share: float, grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return how the gradient of `f(x) * up` splits, each factor getting a share of it."""
    if activation.kind and _fits_kernel(grad, x, up):
        from ..kernels.gate_gradients import gate_gradients

        return gate_gradients(grad, x, up, kind=activation.kind, ratio=activation.ratio, share=share)
    reaching = grad * up
    below, value = activation.back(reaching if share == 1 else reaching.mul_(share), x)
    beside = value * grad
    return below, beside if share == 1 else beside.mul_(share)


def _fits_kernel(*tensors: Tensor) -> bool:
    same = all(x.dtype == tensors[0].dtype and x.is_contiguous() for x in tensors)
    return same and tensors[0].dtype != torch.float64 and at_hand(tensors[0].device)


def _keeper(context: Propagation) -> Keeper:
    assert context.keeper is not None  # checked before a call is fused
    return context.keeper
