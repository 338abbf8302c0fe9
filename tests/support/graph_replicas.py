"""What tests share: graph replicas."""

from __future__ import annotations

import numpy as np
import torch

import conserva
from conserva.datasets.graph import Graph, batch, induced, structure
from conserva.datasets.superpixels import blank


def replica(task: conserva.Graph, graph: Graph, kept: np.ndarray, mask: str) -> torch.Tensor:
    """The logits of a graph without some nodes, one graph at a time."""
    if mask == "blank":
        if graph.nodes.dtype.kind == "f":
            inputs = batch([blank(graph, kept)], [structure(graph)])
        else:
            inputs = batch([graph], [structure(graph)])
            inputs["nodes"][0, ~kept] = 0
    elif not kept.any():
        inputs = batch([graph], [structure(graph)], [[]])
    elif mask == "induced":
        left = induced(graph, kept)
        inputs = batch([left], [structure(left)])
    else:  # the node is deleted from all arrays, and the rest of them stays
        whole = batch([graph], [structure(graph)])
        inputs = {"nodes": whole["nodes"][:, kept], "degrees": whole["degrees"][:, kept]}
        inputs |= {name: whole[name][:, kept][:, :, kept] for name in ("distances", "paths") if name in whole}
    inputs["nodes"] = inputs["nodes"].double() if inputs["nodes"].is_floating_point() else inputs["nodes"]
    return task.model(**inputs).logits[0]
