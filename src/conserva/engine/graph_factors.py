"""Where the factors of a product come from, in an autograd graph: shared by a rule, or made of the same tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor

from . import autograd_graph as graph
from .autograd_graph import Edge, live_edges, name_of

_MOST_STEPS = 4096
"""After how many nodes a search gives up."""


def _share(edge: Edge) -> float:
    """Return which share of the gradient passes on to a factor of a product; 1 where no rule took a share of it."""
    node, steps = edge[0], 0
    while node is not None and steps < _MOST_STEPS:
        steps += 1
        if name_of(node) == "ScaleGradient" and graph.is_own(node):
            return float(node.factor)
        factors = live_edges(node, graph.MATRIX_PRODUCTS.get(name_of(node), graph.PRODUCTS.get(name_of(node))))
        if len(factors) > 1 and name_of(node) not in graph.LINEAR:
            return sum(map(_share, factors))
        if len(factors) != 1 or (name_of(node) not in graph.LINEAR and name_of(node) not in graph.MATRIX_PRODUCTS):
            return 1.0
        node = factors[0][0]
    return 1.0


def are_shared(factors: Sequence[Edge]) -> bool:
    """Tell whether the factors of a product get shares of the gradient that sum up to one."""
    return abs(sum(map(_share, factors)) - 1) < 1e-6


def reaches(edge: Edge, found: Callable[[Any], bool], through: Collection[str] = ()) -> bool:
    """Tell whether a node is reached through nodes that move, mask or scale values, or are of some other names."""
    waiting, seen = [edge[0]], set[Any]()
    while waiting and len(seen) < _MOST_STEPS:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if found(node):
            return True
        name = name_of(node)
        plain = name in graph.MOVES or name in graph.SUMS or name in ("Mul", "Div") or name in through
        waiting += [before for before, _ in live_edges(node)] if plain or graph.is_own(node) else []
    return False


_PICKS = frozenset({
    "AsStrided", "Flip", "Gather", "Index", "IndexSelect", "Narrow", "Permute", "Roll", "Rot90", "Select", "Slice",
    "Split", "SplitWithSizes", "T", "Transpose", "Unbind",
})  # fmt: skip
"""Nodes that take a part of a tensor, or another order of it: different parts are different tensors."""


def _sources(edge: Edge) -> dict[tuple[Any, ...], list[Any]]:
    """Return what an elementwise function is a function of, each with the index that picked it."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    waiting, seen = [edge], set[Any]()
    while waiting and len(seen) < _MOST_STEPS:
        node, number = waiting.pop()
        if (node, number) in seen:
            continue
        seen.add((node, number))
        name, before = name_of(node), live_edges(node)
        if name in _PICKS:
            plain, tensors = _saved(node)
            found[(name, number, tuple(before), plain)] = tensors
        elif _is_elementwise(node, name) or (name in graph.MOVES and len(before) == 1):
            waiting += before
        else:
            found[(node, number)] = []
    return found


def _is_elementwise(node: Any, name: str) -> bool:
    return bool(graph.elementwise_of(node)) or name in graph.SUMS or name in ("Mul", "Div", "ScaleGradient")


def _saved(node: Any) -> tuple[tuple[Any, ...], list[Tensor]]:
    """Return the numbers and the tensors that a node keeps: which part of a tensor it takes."""
    kept = [getattr(node, name) for name in sorted(dir(node)) if name.startswith("_saved_") and "self" not in name]
    flat = [one for value in kept for one in (value if isinstance(value, (tuple, list)) else (value,))]
    return tuple(x for x in flat if not isinstance(x, Tensor)), [x for x in flat if isinstance(x, Tensor)]


def one_source(factors: Sequence[Edge]) -> bool:
    """Tell whether all factors are elementwise functions of the same tensor."""
    first, *others = map(_sources, factors)
    return _joined_again(factors) or all(
        first.keys() == other.keys()
        and all(len(a) == len(b) and all(map(_equal, a, b)) for a, b in ((first[key], other[key]) for key in first))
        for other in others
    )


def _joined_again(factors: Sequence[Edge]) -> bool:
    """Tell whether a factor is put together of parts of the one tensor that the other is made of."""
    roots, joined = zip(*map(_roots, factors), strict=True)
    return any(joined) and len(roots[0]) == 1 and all(one == roots[0] for one in roots)


def _roots(edge: Edge) -> tuple[set[Any], bool]:
    """Return what a factor is made of element by element, whatever parts were taken and joined, and if some were."""
    found, joined = set(), False
    waiting, seen = [edge[0]], set[Any]()
    while waiting and len(seen) < _MOST_STEPS:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        name, before = name_of(node), live_edges(node)
        if _is_elementwise(node, name) or name in graph.MOVES:
            joined |= name in ("Cat", "Stack") and len(before) > 1
            waiting += [one for one, _ in before]
        else:
            found.add(node)
    return found, joined


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.device == b.device and bool((a == b).all())
