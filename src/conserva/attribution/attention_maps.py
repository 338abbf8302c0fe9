"""Attention maps, recorded during a forward pass of any implementation of attention in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..engine.context import Propagation
from ..engine.operations.attention import softmax, written_out
from ..engine.operations.linear import einsum, matrix_product
from ..engine.operations.readers import READERS
from ..engine.rules import RULE_SETS
from ..errors import NotApplicable

if TYPE_CHECKING:
    from ..engine.operations.tensors import Reader
    from ..engine.sources import Sources

PRODUCTS = ("matmul", "__matmul__", "bmm", "mm", "einsum")
_MIXING = ("MmBackward", "AddmmBackward", "BmmBackward", "BaddbmmBackward", "Convolution", "LinearBackward")
"""Prefixes of graph nodes that are matrix products: none is between a softmax and the products before and after it."""


@dataclass(frozen=True)
class State:
    """The sequence that a tensor belongs to, and the attention results that were added to it."""

    sequence: frozenset[str]
    """The names of its inputs; empty for a sequence of the model's own, such as the latents of a Perceiver."""
    written: frozenset[int]
    """The numbers of the maps whose results were added to the sequence."""


@dataclass
class Map:
    """One attention map: the probabilities by which queries of one sequence attend to keys of another, or the same."""

    number: int
    """Its number among the maps of the forward pass."""
    product: int
    """The number of its product with the values, among the matrix products of the forward pass."""
    operand: Tensor
    """The probabilities in the model's own shape, as a tensor of the graph."""
    is_first: bool
    """Whether it is the first factor of that product."""
    shaped: Callable[[Tensor], Tensor]
    """Reshapes the operand, or its gradient, to samples x heads x queries x keys."""
    query: State
    key: State

    @property
    def probabilities(self) -> Tensor:
        """The probabilities, samples x heads x queries x keys."""
        return self.shaped(self.operand.detach())

    @property
    def is_self(self) -> bool:
        """Whether it is self-attention."""
        return self.query.sequence == self.key.sequence


class MapRecorder(Propagation):
    """The context of the plain gradient, in which fused attention is decomposed and attention maps are recorded."""

    def __init__(self, sources: Sources, samples: int) -> None:
        super().__init__(RULE_SETS["gi"], None, sources, _TABLE)
        self.samples = samples
        self.maps: list[Map] = []
        self.products = 0
        self.softmaxes: set[Any] = set()
        self.factors: dict[Any, tuple[Any, Any]] = {}
        self.barriers: dict[Any, int] = {}
        self._states: dict[Any, State] = {}
        self._passed: set[Any] = set()

    def state(self, node: Any) -> State:
        """Return the state of a node's tensor, found by a search down to the inputs that stops at attention.

        By residual connections, every layer is connected to the inputs of its own sequence; to those of another
        sequence it is connected only through attention.
        """
        if node not in self._states:
            sequence, written, seen, waiting = set(), set(), set(), [node]
            while waiting:
                below = waiting.pop()
                if below is None or below in seen:
                    continue
                seen.add(below)
                if below in self.barriers:
                    written.add(self.barriers[below])
                elif (leaf := getattr(below, "variable", None)) is not None:
                    sequence.update(self._names(leaf))
                else:
                    waiting.extend(before for before, _ in below.next_functions)
            self._passed |= seen
            for number in written:  # without residual connections, the sequence is that of the last attention
                sequence.update(self.maps[number].query.sequence)
            self._states[node] = State(frozenset(sequence), frozenset(written))
        return self._states[node]

    def _names(self, leaf: Tensor) -> list[str]:
        leaves = self.sources.leaves if self.sources is not None else {}
        return [name.partition("#")[0] for name, x in leaves.items() if x is leaf]

    def mixing(self) -> list[str]:
        """Return the names of operations other than attention that may mix positions.

        Audio and images are embedded by convolutions: for these inputs, only operations after some attention count.
        """
        names: dict[str, None] = {}
        for node in self._passed - set(self.barriers):
            kind = str(node.name()).rpartition("::")[2]
            if _may_mix(kind, node):
                state = self.state(node)
                if state.written or any("ids" in name for name in state.sequence):
                    names[kind.partition("Backward")[0].lower()] = None
        return sorted(names)

    def leaks(self, number: Tensor, read: Tensor) -> bool:
        """Return whether, with all attention blocked, a target depends on positions other than those it reads."""
        reached = self.reached(number).values()
        return bool(read.all()) or any(mask.shape != read.shape or bool((mask & ~read).any()) for mask in reached)

    def reached(self, number: Tensor) -> dict[str, Tensor]:
        """Return the positions that a target depends on with all attention blocked: input -> mask of its positions."""
        leaves = self.sources.leaves if self.sources is not None else {}
        blocks = [node.register_prehook(lambda grads: tuple(map(torch.zeros_like, grads))) for node in self.barriers]
        try:
            grads = self.gradient(number.sum(), list(leaves.values()), keep=True)
        finally:
            for handle in blocks:
                handle.remove()
        pairs = zip(leaves, grads, strict=True)
        return {name: grad.ne(0).any(-1) for name, grad in pairs if grad is not None and grad.any()}

    def record(
        self, product: int, out: Tensor, operand: Tensor, is_first: bool, value: Tensor, shaped: Callable[..., Any]
    ) -> None:
        """Record a map; `out` is its product with the values."""
        key = self.state(value.grad_fn)
        query = self._query(operand, key)
        number = len(self.maps)
        self.maps.append(Map(number, product, operand, is_first, shaped, query, key))
        self.barriers[out.grad_fn] = number

    def _query(self, probabilities: Tensor, key: State) -> State:
        """Return the state of the queries: a factor of one of the matrix products before the softmax."""
        nodes = [node for node in _near(probabilities.grad_fn) if node in self.factors]
        pairs = [[self.state(factor) for factor in self.factors[node]] for node in nodes]
        if any(a.sequence == b.sequence == key.sequence for a, b in pairs):
            return key
        for a, b in pairs:  # other products are with constants of the model, such as relative positions
            if key.sequence in (a.sequence, b.sequence):
                return a if b.sequence == key.sequence else b
        return key

    def is_softmax(self, x: Any) -> bool:
        """Return whether a tensor is a softmax, or was computed from one without a matrix product."""
        return isinstance(x, Tensor) and x.requires_grad and any(node in self.softmaxes for node in _near(x.grad_fn))


def _may_mix(kind: str, node: Any) -> bool:
    """Return whether a node may mix the positions of a sequence; the graph does not show along which dimension."""
    if kind.startswith("Convolution"):
        return any(size > 1 for size in node._saved_weight.shape[2:])
    if kind.startswith(("Bmm", "Baddbmm")):  # linear attention, or a product within each position
        return sum(before is not None for before, _ in node.next_functions) > 1
    return kind.startswith(("Cumsum", "Cumprod", "Fft"))


def _near(node: Any) -> list[Any]:
    """Return the nodes that one was computed from, down to the next matrix products."""
    seen: dict[Any, None] = {}
    waiting = [node]
    while waiting:
        below = waiting.pop()
        if below is None or below in seen:
            continue
        seen[below] = None
        if not str(below.name()).rpartition("::")[2].startswith(_MIXING):
            waiting.extend(before for before, _ in below.next_functions)
    return list(seen)


def _softmax(context: MapRecorder, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    out = softmax(context, function, input, *args, **kwargs)
    if isinstance(out, Tensor) and out.requires_grad:
        context.softmaxes.add(out.grad_fn)
    return out


def _product(context: MapRecorder, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a matrix product. If one factor is a softmax and the other is live, they are a map and its values."""
    is_einsum = function.__name__ == "einsum"
    read = einsum if is_einsum else matrix_product
    out = read(context, function, *args, **kwargs)
    product, context.products = context.products, context.products + 1
    factors = factors_of(is_einsum, args, kwargs)
    if factors is None or not isinstance(out, Tensor) or not out.requires_grad:
        return out
    (a, b), equation = factors
    maps = [context.is_softmax(a), context.is_softmax(b)]
    if sum(maps) == 1 and a.requires_grad and b.requires_grad:
        operand, value = (a, b) if maps[0] else (b, a)
        shaped = _shaper(equation, maps[0], operand, context.samples)
        context.record(product, out, operand, maps[0], value, shaped)
    else:
        context.factors[out.grad_fn] = (a.grad_fn, b.grad_fn)
        if equation is not None:  # einsum may return a view of its product
            for node in _near(out.grad_fn):
                context.factors.setdefault(node, (a.grad_fn, b.grad_fn))
    return out


def factors_of(is_einsum: bool, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the two factors of a matrix product, and the equation of an einsum; None if there are not two factors."""
    given = [*args, *kwargs.values()]
    equation = given.pop(0) if is_einsum else None
    if len(given) == 1 and isinstance(given[0], (list, tuple)):
        given = list(given[0])
    return (given, equation) if len(given) == 2 and all(isinstance(x, Tensor) for x in given) else None


def _shaper(equation: str | None, first: bool, operand: Tensor, samples: int) -> Callable[[Tensor], Tensor]:
    """Return the function that reshapes a map to samples x heads x queries x keys."""
    order = _axes(equation, first) if equation is not None else [-2, -1] if first else [-1, -2]

    def shaped(x: Tensor) -> Tensor:
        if order is not None:
            x = x.permute(*(axis for axis in range(x.dim()) if axis - x.dim() not in order), *order)
        if x.dim() == 2:
            x = x[None]
        if x.dim() == 3:  # one head, or samples and heads in one dimension
            x = x.unflatten(0, (samples, -1)) if x.shape[0] % samples == 0 else x[None]  # type: ignore[no-untyped-call]
        if order is None or x.dim() != 4 or x.shape[0] != samples:
            raise NotApplicable(
                f"An attention map of shape {tuple(operand.shape)} cannot be reshaped to samples x heads x queries x "
                f"keys for {samples} sample(s): the model attends within windows or blocks, or merges dimensions. "
                "Attention methods do not apply to it; use a method by rules (gi, ah+ln, exact, ...)."
            )
        return x

    return shaped


def _axes(equation: str, first: bool) -> list[int] | None:
    """Return the dimensions of an einsum's map that are [samples, heads,] queries and keys, counted from the end."""
    names, _, result = equation.replace(" ", "").partition("->")
    a, b = names.split(",")
    own, other = (a, b) if first else (b, a)
    keys = [x for x in own if x in other and x not in result]
    queries = [x for x in own if x not in other and x in result]
    shared = sorted((x for x in own if x.isalpha() and x in other and x in result), key=result.index)
    if len(keys) != 1 or len(queries) != 1 or (shared and "." in own):
        return None
    return [own.index(x) - len(own) for x in (*shared, *queries, *keys)]


_TABLE: dict[str, Reader] = {
    **READERS,
    "softmax": _softmax,
    "scaled_dot_product_attention": written_out,
    **dict.fromkeys(PRODUCTS, _product),
}
