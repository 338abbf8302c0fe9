"""Graph classification; the features are a virtual node and the nodes."""

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
from .model_kind import ModelKind
from .task import Encoded

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..models.graphormer import Graphormer

VIRTUAL = "virtual node"
MASKS = ("token", "induced", "blank")
"""How nodes are removed. `token`: they are masked in attention, and the others keep their degrees, distances and paths.
`induced`: degrees, distances and paths are those of the induced subgraph of the others. `blank`: their features are set
to padding, or to a black superpixel."""


@dataclass(frozen=True, eq=False)
class EncodedGraph(Encoded):
    """An encoded graph: the virtual node, then its nodes."""

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
        picture = self.graph.picture
        return picture and {
            key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in picture.items()
        }

    def controls(self) -> dict[str, np.ndarray]:
        """Return the brightness of the nodes, for superpixels."""
        return {"intensity": np.append(0.0, self.graph.nodes[:, 0])} if _is_superpixels(self.graph) else {}


class GraphRows(KeptRows[EncodedGraph]):
    """A graph with different nodes removed in each row."""


class Graph(Classifier):
    """A graph classifier: a Graphormer, whose inputs are graphs, SMILES if its nodes are atoms, or images.

    Parameters
    ----------
    model
        One of conserva's Graphormers, in evaluation mode.
    name
        The name of the model in results.
    head
        The kind of output head, if the configuration does not describe it: "single_label", "multi_label", "binary",
        "regression".

    Examples
    --------
    >>> task = conserva.load("bace")
    >>> task  # doctest: +ELLIPSIS
    Graph('bace', model=Graphormer..., device='cpu')
    """

    kind = ModelKind("graph classifier", "AutoModelForSequenceClassification", classifies=True)

    features = ("inputs_embeds",)
    noun = "graph"
    needs_processor = False

    model: Graphormer

    def __init__(self, model: Graphormer, name: str | None = None, *, head: str | None = None) -> None:
        from ..models.graphormer import Graphormer  # imported here, since it takes a second

        if not isinstance(model, Graphormer):
            raise Error(
                f"model={type(model).__name__} is not conserva's Graphormer. For other graph Transformers use "
                "conserva.relevance, or conserva.integrations.geometric with PyTorch Geometric."
            )
        super().__init__(model, name, head)

    @classmethod
    def from_files(cls, model: Any, source: str, options: Mapping[str, Any], name: str, **how: Any) -> Self:
        return cls(model, name, **how)

    @classmethod
    def from_objects(cls, model: Any, processor: Any, name: str | None = None, **how: Any) -> Self:
        return cls(model, name, **how)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def is_single(self, given: Any) -> bool:
        return isinstance(given, (str, np.ndarray, graphs.Graph))

    def labelled(self, data: Any) -> Labelled:
        """Return graphs with labels, from a dataset's test split, a file of SMILES, graphs, or (graph, label) pairs."""
        if isinstance(data, Labelled):
            return data
        if isinstance(data, str) and data in GRAPH_DATASETS:
            split = GRAPH_DATASETS[data].read("test")
            labels_of_split = tuple(graph.label for graph in split if graph.label is not None)
            return Labelled(tuple(split), labels_of_split, f"{data} (test)")
        if isinstance(data, (str, Path)):
            return read_labelled(data)
        if not isinstance(data, Sequence) or not data:
            raise Error(
                f"data={data!r:.60} contains no graphs: give a file, a list of graphs, or a list of (graph, label)."
            )
        if all(isinstance(row, (tuple, list)) and len(row) == 2 for row in data):
            return Labelled(tuple(graph for graph, _ in data), tuple(label for _, label in data), "graphs")
        if not all(self.is_single(given) for given in data):
            raise Error("data is neither a list of graphs nor a list of (graph, label): its entries differ.")
        labels = [given.label if isinstance(given, graphs.Graph) else None for given in data]
        known = [label for label in labels if label is not None]
        if 0 < len(known) < len(labels):
            raise Error(
                f"{len(labels) - len(known)} of {len(labels)} graphs have no label: label all of them, or none."
            )
        return Labelled(tuple(data), tuple(known) or None, "graphs")

    def encode(self, given: str | np.ndarray | graphs.Graph, *, truncate: bool = False) -> EncodedGraph:
        """Return a graph with its degrees, distances and paths; SMILES and images are converted to graphs."""
        graph = self._read(given)
        config = self.model.config
        shown = graph.name or "The graph"
        if graph.nodes.dtype.kind == "f":
            kind, wanted = f"{graph.nodes.shape[1]} numbers", config.node_features
            fits = graph.nodes.shape[1] == wanted
        else:
            kind, wanted = "ids", config.node_values
            fits = wanted is not None and int(graph.nodes.max()) < wanted
        if not fits:
            takes = f"{config.node_features} numbers" if config.node_features else f"ids below {config.node_values}"
            raise Error(f"{shown!r} has {kind} for each node, {self.name} takes {takes}: give another graph or model.")
        if len(graph) > config.max_nodes:
            raise Error(
                f"{shown[:60]!r} has {len(graph)} nodes, {self.name} takes {config.max_nodes}: give a smaller graph, "
                "or train a model with a larger max_nodes."
            )
        structure = graphs.structure(graph, config.max_distance, config.max_hops)
        if config.edge_values is not None and structure.paths is None:
            raise Error(f"{shown!r} has no edge_ids, but {self.name} uses edge types: give edge_ids.")
        unit = "superpixel" if _is_superpixels(graph) else "node"
        names = graph.names or tuple(f"{unit} {i}" for i in range(len(graph)))
        special = (True, *[False] * len(graph))
        return EncodedGraph(graph.name, (VIRTUAL, *names), special, (None, *range(len(graph))), graph, structure)

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
        """Return a batch of token embeddings: the sums of feature and degree embeddings."""
        inputs = self._tensors(encoded)
        return self._as_tokens({**inputs, "attention_mask": self._present([len(graph) for graph in encoded])})

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        if given is not None and given not in MASKS:
            raise Error(f"mask={given!r} is unknown: choose one of {', '.join(MASKS)}.")
        return given or next((mask for mask in preferred if mask in MASKS), MASKS[0])

    def masked(self, encoded: EncodedGraph, kept: np.ndarray, mask: str) -> GraphRows:
        return GraphRows(encoded, kept[:, 1:], mask)

    def stack(self, parts: Sequence[GraphRows]) -> dict[str, Tensor]:
        inputs = self._tensors([part.encoded for part in parts])
        width = inputs["nodes"].shape[1]
        rows = [np.pad(part.kept, ((0, 0), (0, width - part.kept.shape[1]))) for part in parts]
        kept = torch.from_numpy(np.concatenate(rows)).to(self._device)
        if len(parts) > 1:  # the arrays of a single graph are broadcast over its rows
            lengths = torch.tensor([len(part) for part in parts], device=self._device)
            owner = torch.arange(len(parts), device=self._device).repeat_interleave(lengths, output_size=len(kept))
            inputs = {name: x[owner] for name, x in inputs.items()}
        if parts[0].mask == "token":
            return self._as_tokens({**inputs, "attention_mask": _with_virtual(kept)})
        if parts[0].mask == "blank":
            present = self._present([len(part.encoded) for part in parts for _ in range(len(part))])
            images = [_is_superpixels(part.encoded.graph) for part in parts for _ in range(len(part))]
            blanked = _blanked(inputs["nodes"], kept, torch.tensor(images, device=self._device))
            return self._as_tokens({**inputs, "nodes": blanked, "attention_mask": present})
        return self._induced(parts, inputs["nodes"], kept)

    def _induced(self, parts: Sequence[GraphRows], nodes: Tensor, kept: Tensor) -> dict[str, Tensor]:
        """Return rows with the structure of the induced subgraph of the nodes that are kept."""
        config, width = self.model.config, nodes.shape[1]
        edges = np.zeros((len(parts), width, width), np.int32)
        for i, part in enumerate(parts):
            graph = part.encoded.graph
            edges[i][tuple(graph.edges)] = 1 if graph.edge_ids is None else graph.edge_ids
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
        """Return graphs padded to the largest, without an attention mask."""
        inputs = graphs.batch([each.graph for each in encoded], [each.structure for each in encoded])
        del inputs["attention_mask"]
        dtype = next(self.model.parameters()).dtype
        return {name: x.to(self._device, dtype if x.is_floating_point() else None) for name, x in inputs.items()}

    def _present(self, lengths: Sequence[int]) -> Tensor:
        return torch.arange(max(lengths), device=self._device) < torch.tensor(lengths, device=self._device)[:, None]

    def _as_tokens(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return inputs with token embeddings instead of nodes and degrees."""
        with torch.no_grad():
            tokens = self.model.tokens(inputs["nodes"], inputs["degrees"])
        rest = {name: x for name, x in inputs.items() if name not in ("nodes", "degrees")}
        return {"inputs_embeds": tokens, **rest}


def _with_virtual(kept: Tensor) -> Tensor:
    return torch.nn.functional.pad(kept, (1, 0), value=True)


def _blanked(nodes: Tensor, kept: Tensor, are_images: Tensor) -> Tensor:
    """Return nodes with features set to 0 where they are not kept; of superpixels, only the intensity is set to 0."""
    is_first = torch.arange(nodes.shape[2], device=nodes.device) == 0
    gone = ~kept[:, :, None] & (is_first | ~are_images[:, None, None])
    return nodes.expand(len(kept), -1, -1).masked_fill(gone, 0)


def _is_superpixels(graph: graphs.Graph) -> bool:
    return graph.picture is not None and graph.picture["kind"] == "superpixels"
