"""The structure of many graphs at once, as tensors on any device: what `graph.structure` finds for one.

Masks that leave sub-graphs change distances and paths, and there are millions of them: they are not for one by one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import Error


def batched_structure(
    adjacency: Tensor, edge_ids: Tensor | None = None, max_distance: int = 19, max_hops: int = 5
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return degrees, distances and the edges along shortest paths, as `graph.structure` has them.

    Parameters
    ----------
    adjacency
        Which nodes are joined, booleans, graphs x n x n: symmetric, with no edge from a node to itself. Nodes that are
        not there have no edges.
    edge_ids
        The id of each edge, graphs x n x n, looked at where there is one. None: there are no paths.
    max_distance
        What distances are clipped to; one more says that there is no path.
    max_hops
        How many edges of a path are returned, from its beginning.

    Returns
    -------
    tuple[Tensor, Tensor, Tensor | None]
        Degrees in torch.long, distances in torch.uint8, and paths, graphs x n x n x hops, in the type of the ids.
    """
    _check(adjacency, edge_ids, max_distance, max_hops)
    degrees = adjacency.sum(-1)
    if edge_ids is None:
        distances, joined = _distances(adjacency, max_distance)
    else:  # which way is shorter shows in exact distances only
        distances, joined = _distances(adjacency, adjacency.shape[1])
    paths = None if edge_ids is None else _paths(adjacency, edge_ids, distances, degrees, max_hops)
    clipped = distances.clamp(max=max_distance).masked_fill(~joined, max_distance + 1)
    return degrees, clipped.to(torch.uint8), paths


def _distances(adjacency: Tensor, end: int) -> tuple[Tensor, Tensor]:
    """Return distances up to some end, more than any path where there is none, and which nodes a path joins."""
    # Products of zeros and ones: any type will do, since a sum of ones is never rounded to 0.
    kind = torch.float16 if adjacency.is_cuda else torch.float32
    size = adjacency.shape[1]
    near = adjacency | torch.eye(size, dtype=torch.bool, device=adjacency.device)
    step = near.to(kind)
    reached = torch.eye(size, dtype=torch.bool, device=adjacency.device).expand_as(adjacency)
    distances, count = torch.zeros(adjacency.shape, dtype=torch.int16, device=adjacency.device), -1
    for steps in range(end):
        further = near if steps == 0 else (reached.to(kind) @ step) > 0
        distances += ~reached
        before, count = count, int(further.sum())
        reached = further
        if count == before:
            break
    else:  # how far the rest is does not matter, only whether it is joined at all: twice as far at every step
        while True:
            far = reached.to(kind)
            reached = (far @ far) > 0
            before, count = count, int(reached.sum())
            if count == before:
                break
    return distances.masked_fill(~reached, torch.iinfo(torch.int16).max), reached


def _paths(adjacency: Tensor, ids: Tensor, distances: Tensor, degrees: Tensor, hops: int) -> Tensor:
    count, size, _ = adjacency.shape
    places = torch.arange(size, device=adjacency.device)
    # The neighbours of each node in their order, `size` after the last one.
    neighbours = torch.where(adjacency, places.to(torch.int16), size).sort(-1).values
    most = int(degrees.max()) if degrees.numel() else 0
    taken = places[None, :, None].expand(count, size, size).clone()  # a path that has ended stays where it is
    for number in reversed(range(most)):  # the first neighbour that is nearer is written last
        neighbour = neighbours[:, :, number, None].long()
        there = neighbour < size
        neighbour = neighbour.clamp(max=size - 1).expand(-1, -1, size)
        nearer = (distances.gather(1, neighbour) < distances) & there
        taken = torch.where(nearer, neighbour, taken)
    moves = taken != places[:, None]
    edge = torch.where(moves, ids.gather(2, taken), 0).to(ids.dtype)
    paths = torch.empty(*adjacency.shape, hops, dtype=ids.dtype, device=ids.device)
    at = places[None, :, None].expand(count, size, size)
    for hop in range(hops):
        paths[..., hop] = edge.gather(1, at)
        at = taken.gather(1, at)
    return paths


def _check(adjacency: Tensor, ids: Tensor | None, max_distance: int, max_hops: int) -> None:
    if adjacency.ndim != 3 or adjacency.shape[1] != adjacency.shape[2] or adjacency.dtype != torch.bool:
        raise Error(
            f"adjacency has the shape {tuple(adjacency.shape)} in {adjacency.dtype}: give graphs x n x n booleans."
        )
    if ids is not None and (ids.shape != adjacency.shape or ids.is_floating_point() or ids.dtype == torch.bool):
        raise Error(
            f"edge_ids has the shape {tuple(ids.shape)} in {ids.dtype}: give an integer for each pair, "
            f"{tuple(adjacency.shape)}."
        )
    if not 1 <= max_distance <= 254:
        raise Error(f"max_distance={max_distance} is out of range: give 1 to 254.")
    if max_hops < 1:
        raise Error(f"max_hops={max_hops} leaves no edge of a path: give 1 or more.")
