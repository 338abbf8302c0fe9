"""How the factors of a product were computed: scaled by a rule, or elementwise functions of the same tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor

from . import autograd_graph as graph
from .autograd_graph import Edge, live_edges, name_of

_MOST_STEPS = 4096
"""The number of nodes after which a search stops."""


def _share(edge: Edge) -> float:
    """Return the fraction of the gradient that a rule passes to a factor of a product; 1 without such a rule."""
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
    """Return whether the factors of a product get fractions of the gradient that sum to 1."""
    return abs(sum(map(_share, factors)) - 1) < 1e-6


def reaches(edge: Edge, is_wanted: Callable[[Any], bool], through: Collection[str] = ()) -> bool:
    """Return whether a wanted node is reached through views, copies, sums, masks and scaling.

    Parameters
    ----------
    edge
        Where the search starts.
    is_wanted
        Returns whether a node is the one searched for.
    through
        Names of further nodes that the search passes through.
    """
    waiting, seen = [edge[0]], set[Any]()
    while waiting and len(seen) < _MOST_STEPS:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if is_wanted(node):
            return True
        name = name_of(node)
        plain = name in graph.MOVES or name in graph.SUMS or name in ("Mul", "Div") or name in through
        waiting += [before for before, _ in live_edges(node)] if plain or graph.is_own(node) else []
    return False


_PICKS = frozenset({
    "AsStrided", "Flip", "Gather", "Index", "IndexSelect", "Narrow", "Permute", "Roll", "Rot90", "Select", "Slice",
    "Split", "SplitWithSizes", "T", "Transpose", "Unbind",
})  # fmt: skip
"""Nodes that select or reorder elements: different selections of one tensor are different sources."""


def _sources(edge: Edge) -> dict[tuple[Any, ...], list[Any]]:
    """Return the tensors that an elementwise function depends on: a key for each -> the tensors that index it."""
    sources: dict[tuple[Any, ...], list[Any]] = {}
    waiting, seen = [edge], set[Any]()
    while waiting and len(seen) < _MOST_STEPS:
        node, number = waiting.pop()
        if (node, number) in seen:
            continue
        seen.add((node, number))
        name, before = name_of(node), live_edges(node)
        if name in _PICKS:
            plain, tensors = _saved(node)
            sources[(name, number, tuple(before), plain)] = tensors
        elif _is_elementwise(node, name) or (name in graph.MOVES and len(before) == 1):
            waiting += before
        else:
            sources[(node, number)] = []
    return sources


def _is_elementwise(node: Any, name: str) -> bool:
    return bool(graph.elementwise_of(node)) or name in graph.SUMS or name in ("Mul", "Div", "ScaleGradient")


def _saved(node: Any) -> tuple[tuple[Any, ...], list[Tensor]]:
    """Return the values and the tensors that a node has saved, which determine the elements that it selects."""
    kept = [getattr(node, name) for name in sorted(dir(node)) if name.startswith("_saved_") and "self" not in name]
    flat = [item for value in kept for item in (value if isinstance(value, (tuple, list)) else (value,))]
    return tuple(x for x in flat if not isinstance(x, Tensor)), [x for x in flat if isinstance(x, Tensor)]


def one_source(factors: Sequence[Edge]) -> bool:
    """Return whether all factors are elementwise functions of the same tensor."""
    first, *others = map(_sources, factors)
    return _are_reassembled(factors) or all(
        first.keys() == other.keys()
        and all(len(a) == len(b) and all(map(_equal, a, b)) for a, b in ((first[key], other[key]) for key in first))
        for other in others
    )


def _are_reassembled(factors: Sequence[Edge]) -> bool:
    """Return whether one factor is concatenated from parts of the single tensor that the other is computed from."""
    roots, joined = zip(*map(_roots, factors), strict=True)
    return any(joined) and len(roots[0]) == 1 and all(each == roots[0] for each in roots)


def _roots(edge: Edge) -> tuple[set[Any], bool]:
    """Return the nodes that a factor is computed from elementwise, up to indexing and concatenation.

    The second result is whether parts were concatenated.
    """
    roots, joined = set(), False
    waiting, seen = [edge[0]], set[Any]()
    while waiting and len(seen) < _MOST_STEPS:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        name, before = name_of(node), live_edges(node)
        if _is_elementwise(node, name) or name in graph.MOVES:
            joined |= name in ("Cat", "Stack") and len(before) > 1
            waiting += [previous for previous, _ in before]
        else:
            roots.add(node)
    return roots, joined


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.device == b.device and bool((a == b).all())
