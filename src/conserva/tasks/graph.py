"""Classifying graphs: their nodes are the features, a virtual node stands in front of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..datasets import Labelled, read_labelled
from ..datasets import graph as graphs
from ..datasets.batched_structure import batched_structure
from ..datasets.graph_catalogue import GRAPH_DATASETS
from ..errors import Error
from .classifier import Classifier
from .masking import KeptRows
from .task import Encoded

if TYPE_CHECKING:
    from ..models.graphormer import Graphormer

VIRTUAL = "virtual node"
MASKS = ("token", "induced", "blank")
"""What becomes of nodes that are taken away. `token`: nothing looks at them, the others keep degrees, distances and
paths of the whole graph. `induced`: these are found anew in the sub-graph of the others. `blank`: they stay where they
are and say nothing: no atom's features, or a black superpixel."""


@dataclass(frozen=True, eq=False)
class EncodedGraph(Encoded):
    """A graph as the model sees it: the virtual node, then its nodes."""

    graph: graphs.Graph
    structure: graphs.Structure

    @property
    def key(self) -> str:
        nodes, edges = self.graph.nodes.tobytes().hex(), self.graph.edges.tobytes().hex()
        return f"{nodes} {edges} {None if self.graph.edge_ids is None else self.graph.edge_ids.tobytes().hex()}"

    @property
    def fixed(self) -> tuple[bool, ...]:
        return self.special

    @property
    def picture(self) -> Mapping[str, Any] | None:
        found = self.graph.picture
        return found and {key: one.tolist() if isinstance(one, np.ndarray) else one for key, one in found.items()}

    def controls(self) -> dict[str, np.ndarray]:
        """Return the order of brightness for superpixels."""
        return {"intensity": np.append(0.0, self.graph.nodes[:, 0])} if _is_superpixels(self.graph) else {}


class GraphRows(KeptRows[EncodedGraph]):
    """A graph with other nodes taken away in each row."""


class Graph(Classifier):
    """A classifier of graphs: a Graphormer, asked with graphs, with SMILES if its nodes are atoms, or with images."""

    features = ("inputs_embeds",)
    noun = "graph"

    model: Graphormer

    def __init__(self, model: Graphormer, name: str | None = None, *, head: str | None = None) -> None:
        from ..models.graphormer import Graphormer  # takes a second: who explains texts does not wait for it

        if not isinstance(model, Graphormer):
            raise Error(
                f"model={type(model).__name__} is not conserva's own Graphormer. For a graph Transformer of your own "
                "use conserva.relevance, or conserva.integrations.geometric with PyTorch Geometric."
            )
        super().__init__(model, name, head)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def is_one(self, given: Any) -> bool:
        return isinstance(given, (str, np.ndarray, graphs.Graph))

    def labelled(self, data: Any) -> Labelled:
        """Return graphs with labels: of a dataset's test split, a file with SMILES, graphs, or (graph, label) pairs."""
        if isinstance(data, Labelled):
            return data
        if isinstance(data, str) and data in GRAPH_DATASETS:
            found = GRAPH_DATASETS[data].read("test")
            return Labelled(tuple(found), tuple(one.label for one in found if one.label is not None), f"{data} (test)")
        if isinstance(data, (str, Path)):
            return read_labelled(data)
        if not isinstance(data, Sequence) or not data:
            raise Error(
                f"data={data!r:.60} holds no graphs: give a file, a list of graphs, or a list of (graph, label)."
            )
        if all(isinstance(one, (tuple, list)) and len(one) == 2 for one in data):
            return Labelled(tuple(one for one, _ in data), tuple(label for _, label in data), "graphs")
        if not all(self.is_one(one) for one in data):
            raise Error("data is neither a list of graphs nor a list of (graph, label): its entries differ.")
        labels = [one.label if isinstance(one, graphs.Graph) else None for one in data]
        known = [label for label in labels if label is not None]
        if 0 < len(known) < len(labels):
            raise Error(f"{len(labels) - len(known)} of {len(labels)} graphs have no label: give all one, or none.")
        return Labelled(tuple(data), tuple(known) or None, "graphs")

    def encode(self, given: str | np.ndarray | graphs.Graph, *, truncate: bool = False) -> EncodedGraph:
        """Return a graph with its degrees, distances and paths; a SMILES or an image becomes a graph first."""
        one = self._read(given)
        config = self.model.config
        shown = one.name or "The graph"
        if one.nodes.dtype.kind == "f":
            kind, wanted = f"{one.nodes.shape[1]} numbers", config.node_features
            fits = one.nodes.shape[1] == wanted
        else:
            kind, wanted = "ids", config.node_values
            fits = wanted is not None and int(one.nodes.max()) < wanted
        if not fits:
            takes = f"{config.node_features} numbers" if config.node_features else f"ids below {config.node_values}"
            raise Error(f"{shown!r} has {kind} for each node, {self.name} takes {takes}: it is for other graphs.")
        if len(one) > config.max_nodes:
            raise Error(
                f"{shown[:60]!r} has {len(one)} nodes, {self.name} takes {config.max_nodes}: give a smaller graph, or "
                "train a model with a larger max_nodes."
            )
        its = graphs.structure(one, config.max_distance, config.max_hops)
        if config.edge_values is not None and its.paths is None:
            raise Error(f"{shown!r} has no edge_ids, but {self.name} reads the kinds of edges: give them.")
        unit = "superpixel" if _is_superpixels(one) else "node"
        names = one.names or tuple(f"{unit} {i}" for i in range(len(one)))
        special = (True, *[False] * len(one))
        return EncodedGraph(one.name, (VIRTUAL, *names), special, (None, *range(len(one))), one, its)

    def _read(self, given: Any) -> graphs.Graph:
        if isinstance(given, graphs.Graph):
            return given
        if isinstance(given, str) and self.model.config.node_values is not None:
            from ..datasets.molecules import molecule

            return molecule(given)
        if isinstance(given, np.ndarray) and self.model.config.node_features is not None:
            from ..datasets.superpixels import superpixels

            return superpixels(given)
        takes = "a graph or a SMILES" if self.model.config.node_values is not None else "a graph or a 28 x 28 image"
        raise Error(f"{given!r:.60} is not a graph: {self.name} takes {takes}.")

    def batch(self, encoded: Sequence[EncodedGraph]) -> dict[str, Tensor]:
        """Put graphs side by side, as tokens: what the features of nodes and their degrees add up to."""
        inputs = self._tensors(encoded)
        return self._as_tokens({**inputs, "attention_mask": self._present([len(one) for one in encoded])})

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        if given is not None and given not in MASKS:
            raise Error(f"mask={given!r} is none of {', '.join(MASKS)}.")
        return given or next((one for one in preferred if one in MASKS), MASKS[0])

    def masked(self, encoded: EncodedGraph, kept: np.ndarray, mask: str) -> GraphRows:
        return GraphRows(encoded, kept[:, 1:], mask)

    def stack(self, parts: Sequence[GraphRows]) -> dict[str, Tensor]:
        inputs = self._tensors([part.encoded for part in parts])
        places = inputs["nodes"].shape[1]
        rows = [np.pad(part.kept, ((0, 0), (0, places - part.kept.shape[1]))) for part in parts]
        kept = torch.from_numpy(np.concatenate(rows)).to(self._device)
        if len(parts) > 1:  # one graph's arrays serve all of its rows as they are
            lengths = torch.tensor([len(part) for part in parts], device=self._device)
            owner = torch.arange(len(parts), device=self._device).repeat_interleave(lengths, output_size=len(kept))
            inputs = {name: x[owner] for name, x in inputs.items()}
        if parts[0].mask == "token":
            return self._as_tokens({**inputs, "attention_mask": _with_virtual(kept)})
        if parts[0].mask == "blank":
            there = self._present([len(part.encoded) for part in parts for _ in range(len(part))])
            images = [_is_superpixels(part.encoded.graph) for part in parts for _ in range(len(part))]
            blanked = _blanked(inputs["nodes"], kept, torch.tensor(images, device=self._device))
            return self._as_tokens({**inputs, "nodes": blanked, "attention_mask": there})
        return self._induced(parts, inputs["nodes"], kept)

    def _induced(self, parts: Sequence[GraphRows], nodes: Tensor, kept: Tensor) -> dict[str, Tensor]:
        """Return rows with the structure of the sub-graph that is kept."""
        config, places = self.model.config, nodes.shape[1]
        edges = np.zeros((len(parts), places, places), np.int32)
        for i, part in enumerate(parts):
            one = part.encoded.graph
            edges[i][tuple(one.edges)] = 1 if one.edge_ids is None else one.edge_ids
        lengths = torch.tensor([len(part) for part in parts], device=self._device)
        whole = torch.from_numpy(edges).to(self._device).repeat_interleave(lengths, 0, output_size=len(kept))
        ids = whole * (kept[:, :, None] & kept[:, None, :])
        typed = ids if config.edge_values is not None else None
        degrees, distances, paths = batched_structure(ids != 0, typed, config.max_distance, config.max_hops)
        inputs = {"nodes": nodes.expand(len(kept), -1, -1), "degrees": degrees, "distances": distances.long()}
        if paths is not None:
            inputs["paths"] = paths.long()
        return self._as_tokens({**inputs, "attention_mask": _with_virtual(kept)})

    def _tensors(self, encoded: Sequence[EncodedGraph]) -> dict[str, Tensor]:
        """Return graphs padded to the largest, without a mask."""
        found = graphs.batch([one.graph for one in encoded], [one.structure for one in encoded])
        del found["attention_mask"]
        dtype = next(self.model.parameters()).dtype
        return {name: x.to(self._device, dtype if x.is_floating_point() else None) for name, x in found.items()}

    def _present(self, lengths: Sequence[int]) -> Tensor:
        return torch.arange(max(lengths), device=self._device) < torch.tensor(lengths, device=self._device)[:, None]

    def _as_tokens(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return inputs with the tokens themselves in the place of what they are made of."""
        with torch.no_grad():
            tokens = self.model.tokens(inputs["nodes"], inputs["degrees"])
        rest = {name: x for name, x in inputs.items() if name not in ("nodes", "degrees")}
        return {"inputs_embeds": tokens, **rest}


def _with_virtual(kept: Tensor) -> Tensor:
    return torch.nn.functional.pad(kept, (1, 0), value=True)


def _blanked(nodes: Tensor, kept: Tensor, are_images: Tensor) -> Tensor:
    """Return nodes that say nothing where they are not kept; superpixels keep the places after their intensity."""
    is_first = torch.arange(nodes.shape[2], device=nodes.device) == 0
    gone = ~kept[:, :, None] & (is_first | ~are_images[:, None, None])
    return nodes.expand(len(kept), -1, -1).masked_fill(gone, 0)


def _is_superpixels(one: graphs.Graph) -> bool:
    return one.picture is not None and one.picture["kind"] == "superpixels"
