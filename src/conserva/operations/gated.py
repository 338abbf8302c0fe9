"""Large activations, alone or as the gate of a product, with little kept for the backward pass.

In `down(silu(gate(x)) * up(x))` torch keeps three tensors as wide as the MLP. Two are enough, for silu(gate) can be
made again; and none is needed where gate and up are made again of x, which is narrower and shared. The gradient is then
taken a few rows at a time and led straight on to x, so that none as wide as the MLP stands in memory but the one that
comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ..kernels import at_hand
from ..memory import Keeper
from .elementwise import Call, coefficient, trail_of
from .origins import Origin, origin_of

if TYPE_CHECKING:
    from ..propagation import Propagation

    Back = Callable[..., Sequence[Tensor | None]]
    """From some rows of the gradient, and of every factor, to the gradient of every factor there."""

PIECE_BYTES = 2**26
"""How much of a tensor is worked on at a time in the backward pass."""


@dataclass(frozen=True)
class Activation:
    """An elementwise function that can be made again, and the rule it is read by."""

    again: Call
    ratio: bool
    at_zero: float = 0.0
    slope: float = 0.0

    def back(self, grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient that the rule leads on to `x`, and f(x)."""
        if self.ratio:
            value = self.again(x)
            return coefficient(x, value, self.at_zero, self.slope).mul_(grad), value
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            value = self.again(x)
        return torch.autograd.grad(value, x, grad)[0], value.detach()


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
            _pass_by(x)
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
    return context.books is None or (origin.bias is None and context.rules.attention == "freeze")


def _pass_by(x: Tensor) -> None:
    x.__dict__["conserva_passed_by"] = True


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
    back: dict[tuple[int, torch.Size], Tensor] = {}
    for x in kept:
        if x is not None and (x.data_ptr(), x.shape) not in back:
            back[x.data_ptr(), x.shape] = Keeper.unpack(x, device).reshape(-1, x.shape[-1])
    return [None if x is None else back[x.data_ptr(), x.shape] for x in kept]


def _fuse(value: Tensor, back: Back, *factors: Factor) -> Tensor:
    links = {id(factor.link): factor.link for factor in factors if factor.link is not None}
    return Fused.apply([value], back, factors, *links.values())  # type: ignore[no-any-return, no-untyped-call]


def activate(context: Propagation, x: Tensor, activation: Activation) -> Tensor | None:
    """Return f(x) of a large `x`, or nothing where torch's own graph would keep as little."""
    if origin_of(x) is not None and not _keeper(context).keeps_whole(x):
        factor = Factor.of(context, x)
    elif activation.ratio:
        factor = Factor(x.detach(), x)  # rather than the ratio, which would be made in vain if a product follows
    else:
        return None
    with torch.no_grad():
        value = activation.again(x)
    return _fuse(value, lambda grad, x: activation.back(grad, x)[:1], factor)


def gate(context: Propagation, function: Callable[..., Any], a: Tensor, b: Tensor) -> Tensor | None:
    """Return the product of large live tensors if one comes out of an activation; nothing if it is another product."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return None
    gate, up, again, keeper = a, b, _again(a), _keeper(context)
    if again is None:
        gate, up, again = b, a, _again(b)
    if again is None:
        return None
    trail = trail_of(gate)
    constant = context.rules.product == "freeze-gate" and trail_of(up).linear
    activation = Activation(again, context.rules.activation == "ratio", *context.functions.limit(trail.function))
    if activation.ratio and activation.at_zero and not constant:
        return None  # f(0) is booked at the activation
    share = 1.0 if context.meet("product", function) == "gradient" else 0.5
    _pass_by(gate)
    with torch.no_grad():
        value = function(a, b)
    if not constant:
        return _fuse(value, _both(activation, share), Factor.of(context, trail.source), Factor.of(context, up))
    up_alone = Factor.of(context, up, valued=False)
    if origin_of(trail.source) is None or keeper.keeps_whole(gate):
        return _fuse(value, lambda grad, gate, _: (None, grad * gate), Factor(keeper.pack(gate), None), up_alone)
    remade = Factor.of(context, trail.source, linked=False)
    return _fuse(value, lambda grad, x, _: (None, grad * again(x)), remade, up_alone)


def _again(x: Tensor) -> Call | None:
    """Return the call that made `x`, if that was an activation and `x` is still what it made."""
    trail = trail_of(x)
    return trail.again if trail.made == x._version and trail.source.dtype == x.dtype else None


def _both(activation: Activation, share: float) -> Back:
    """Return how the gradient of `f(x) * up` splits, each factor getting a share of it."""
    kind = _kind(activation.again)

    def back(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        if kind and _fits_kernel(grad, x, up):
            from ..kernels.gate_gradients import gate_gradients

            return gate_gradients(
                grad, x, up, kind=kind, ratio=activation.ratio, share=share, slope=activation.slope
            )  # fmt: skip
        reaching = grad * up
        below, value = activation.back(reaching if share == 1 else reaching.mul_(share), x)
        beside = value * grad
        return below, beside if share == 1 else beside.mul_(share)

    return back


def _kind(call: Call) -> str:
    """Return what the GPU kernel calls a function, or nothing."""
    name, how = call.function.__name__, {**dict(zip(("approximate",), call.args, strict=False)), **call.kwargs}
    if name == "gelu" and set(how) <= {"approximate"}:
        return "gelu_tanh" if how.get("approximate") == "tanh" else "gelu"
    return name if name in ("silu", "relu") and not how else ""


def _fits_kernel(*tensors: Tensor) -> bool:
    same = all(x.dtype == tensors[0].dtype and x.is_contiguous() for x in tensors)
    return same and tensors[0].dtype != torch.float64 and at_hand(tensors[0].device)


def _keeper(context: Propagation) -> Keeper:
    assert context.keeper is not None  # whoever fuses has asked
    return context.keeper
