"""The structure of many graphs at once, as tensors on any device; `graph.structure` computes it for a single graph.

Faithfulness curves of induced subgraphs need the distances and paths of millions of graphs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import Error


def batched_structure(
    adjacency: Tensor, edge_ids: Tensor | None = None, max_distance: int = 19, max_hops: int = 5
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return degrees, distances and the edges along shortest paths, as defined by `graph.structure`.

    Parameters
    ----------
    adjacency
        Adjacency matrices, booleans, graphs x n x n: symmetric and without loops. Padding nodes have no edges.
    edge_ids
        The id of each edge, graphs x n x n; other entries are ignored. None: no paths are returned.
    max_distance
        The maximum of distances; max_distance + 1 means that there is no path.
    max_hops
        The number of edges of a path that are returned, from its beginning.

    Returns
    -------
    tuple[Tensor, Tensor, Tensor | None]
        Degrees as torch.long, distances as torch.uint8, and paths, graphs x n x n x hops, in the dtype of the ids.
    """
    _check(adjacency, edge_ids, max_distance, max_hops)
    degrees = adjacency.sum(-1)
    if edge_ids is None:
        distances, connected = _distances(adjacency, max_distance)
    else:  # shortest paths need exact distances
        distances, connected = _distances(adjacency, adjacency.shape[1])
    paths = None if edge_ids is None else _paths(adjacency, edge_ids, distances, degrees, max_hops)
    clipped = distances.clamp(max=max_distance).masked_fill(~connected, max_distance + 1)
    return degrees, clipped.to(torch.uint8), paths


def _distances(adjacency: Tensor, end: int) -> tuple[Tensor, Tensor]:
    """Return distances up to `end`, the maximum of int16 where there is no path, and which nodes are connected."""
    # Matrices of zeros and ones: any dtype will do, since a sum of ones is never rounded to 0.
    dtype = torch.float16 if adjacency.is_cuda else torch.float32
    size = adjacency.shape[1]
    near = adjacency | torch.eye(size, dtype=torch.bool, device=adjacency.device)
    step = near.to(dtype)
    reached = torch.eye(size, dtype=torch.bool, device=adjacency.device).expand_as(adjacency)
    distances, count = torch.zeros(adjacency.shape, dtype=torch.int16, device=adjacency.device), -1
    for steps in range(end):
        further = near if steps == 0 else (reached.to(dtype) @ step) > 0
        distances += ~reached
        before, count = count, int(further.sum())
        reached = further
        if count == before:
            break
    else:  # beyond `end` only connectivity matters, so the number of steps is doubled each time
        while True:
            far = reached.to(dtype)
            reached = (far @ far) > 0
            before, count = count, int(reached.sum())
            if count == before:
                break
    return distances.masked_fill(~reached, torch.iinfo(torch.int16).max), reached


def _paths(adjacency: Tensor, ids: Tensor, distances: Tensor, degrees: Tensor, hops: int) -> Tensor:
    count, size, _ = adjacency.shape
    nodes = torch.arange(size, device=adjacency.device)
    # The neighbours of each node in ascending order, padded with `size`.
    neighbours = torch.where(adjacency, nodes.to(torch.int16), size).sort(-1).values
    most = int(degrees.max()) if degrees.numel() else 0
    following = nodes[None, :, None].expand(count, size, size).clone()  # at its end, a path stays at its node
    for number in reversed(range(most)):  # the first neighbour that is nearer is written last
        neighbour = neighbours[:, :, number, None].long()
        exists = neighbour < size
        neighbour = neighbour.clamp(max=size - 1).expand(-1, -1, size)
        nearer = (distances.gather(1, neighbour) < distances) & exists
        following = torch.where(nearer, neighbour, following)
    moves = following != nodes[:, None]
    edge = torch.where(moves, ids.gather(2, following), 0).to(ids.dtype)
    paths = torch.empty(*adjacency.shape, hops, dtype=ids.dtype, device=ids.device)
    at = nodes[None, :, None].expand(count, size, size)
    for hop in range(hops):
        paths[..., hop] = edge.gather(1, at)
        at = following.gather(1, at)
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
        raise Error(f"max_hops={max_hops} is too small: give 1 or more.")
