"""Graphormer (Ying et al., NeurIPS 2021) as a graph classifier, the model that Ali et al. (2022) explain.

Nodes are tokens. The structure of the graph enters through degree embeddings, added to the tokens, and through a bias
on the attention scores. It is a Hugging Face `PreTrainedModel`, so it is saved, loaded and explained like any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from ..errors import Error


class GraphormerConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """The configuration. Nodes have either categorical features (`node_values`) or numeric ones (`node_features`)."""

    model_type = "conserva-graphormer"

    hidden_size: int = 80
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    ffn_size: int = 80
    layer_norm_eps: float = 1e-5
    hidden_dropout_prob: float = 0.1
    attention_dropout_prob: float = 0.0
    node_values: int | None = None
    """Size of the embedding that all categorical features share, each with its own range of ids; 0 is padding."""
    node_features: int | None = None
    """The number of numeric features of a node."""
    max_nodes: int = 128
    """The maximum number of nodes: larger graphs are unlike the graphs that the model was trained on."""
    max_degree: int = 12
    """The largest degree with its own embedding; higher degrees are clipped to it."""
    max_distance: int = 19
    """The largest distance with its own bias. max_distance + 1 means that there is no path."""
    edge_values: int | None = None
    """Size of the edge embedding, of which 0 is padding. None: edges have no types, and `paths` are not used."""
    max_hops: int = 5
    """The number of edges used of each shortest path, from its beginning."""
    pre_norm: bool = True
    """Whether layer norms come before attention and feed-forward layers (pre-LN), as in the first release, or after
    the residual connections (post-LN)."""


class Graphormer(PreTrainedModel):
    """Transformer blocks on a virtual node and the nodes, with an attention bias from the graph, and a linear
    classifier on the virtual node."""

    config_class = GraphormerConfig
    config: GraphormerConfig
    main_input_name = "nodes"

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__(config)
        if config.hidden_size % config.num_attention_heads:
            raise Error(
                f"hidden_size={config.hidden_size} is not a multiple of "
                f"num_attention_heads={config.num_attention_heads}: choose a multiple."
            )
        if (config.node_values is None) == (config.node_features is None):
            raise Error(
                f"node_values={config.node_values} and node_features={config.node_features}: give one of the two, the "
                "size of the embedding of categorical features or the number of numeric features of a node."
            )
        self.tokens = Tokens(config)
        self.bias = GraphBias(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps) if config.pre_norm else nn.Identity()
        self.classifier = nn.Linear(config.hidden_size, int(config.num_labels or 0))
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as the first release does; padding rows of embeddings are 0."""
        if isinstance(module, nn.Linear):
            initialization.normal_(module.weight, std=0.02 / math.sqrt(self.config.num_hidden_layers))
            initialization.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            initialization.normal_(module.weight, std=0.02)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                initialization.zeros_(module.weight[module.padding_idx])

    def get_input_embeddings(self) -> nn.Module:
        """Return the layer that embeds the features of nodes."""
        return self.tokens.features

    def forward(
        self,
        nodes: Tensor | None = None,
        degrees: Tensor | None = None,
        distances: Tensor | None = None,
        paths: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool = False,
        **ignored: Any,
    ) -> SequenceClassifierOutput:
        """Return the logits of graphs with n nodes each.

        Parameters
        ----------
        nodes
            Features of the nodes, graphs x n x features: ids or numbers.
        degrees
            Graphs x n, clipped to `max_degree`.
        distances
            Lengths of shortest paths, graphs x n x n, clipped to `max_distance`; max_distance + 1 where there is no
            path.
        paths
            Ids of the edges along one shortest path, graphs x n x n x hops, padded with 0.
        attention_mask
            Graphs x (1 + n), true for the virtual node and for real nodes; by default all are real. Masked nodes have
            no effect, and the others keep their degrees, distances and paths. With the arrays of a single graph, the
            mask may have any number of rows.
        inputs_embeds
            Embedded tokens, graphs x (1 + n) x hidden size, instead of `nodes` and `degrees`: the output of `tokens`,
            with the virtual node first.
        output_hidden_states
            Whether to return the tokens and the output of each block; the last block outputs the virtual node only.
        """
        if distances is None or (inputs_embeds is None and (nodes is None or degrees is None)):
            raise Error("A graph needs distances, and either nodes with their degrees or inputs_embeds.")
        x: Any = self.tokens(nodes, degrees) if inputs_embeds is None else inputs_embeds
        bias = self.bias(distances, paths)
        if attention_mask is not None:
            masked = F.pad(~attention_mask[:, 1:].bool(), (1, 0))  # the virtual node is never masked
            bias = bias.masked_fill(masked[:, None, None, :], -math.inf)
            x = x.expand(len(bias), -1, -1)
        states = [x]
        for number, block in enumerate(self.blocks, 1):
            # Of the last block only the virtual node is used.
            x = block(x, bias if number < len(self.blocks) else bias[:, :, :1])
            states.append(x)
        logits = self.classifier(self.norm(x[:, 0]))
        return SequenceClassifierOutput(logits=logits, hidden_states=tuple(states) if output_hidden_states else None)


class Tokens(nn.Module):
    """The embedding of the virtual node, then for every node the sum of its feature and degree embeddings (centrality
    encoding, equation 5)."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        width = config.hidden_size
        if config.node_values is not None:
            self.features: nn.Module = nn.Embedding(config.node_values, width, padding_idx=0)
        else:
            self.features = nn.Linear(config.node_features or 0, width)
        self.degrees = nn.Embedding(config.max_degree + 1, width)
        self.virtual = nn.Embedding(1, width)
        self.dropout = config.hidden_dropout_prob

    def forward(self, nodes: Tensor, degrees: Tensor) -> Tensor:
        if isinstance(self.features, nn.Embedding):
            _check(nodes, self.features, "nodes", "node_values - 1")
            x = self.features(nodes).sum(2)
        else:
            x = self.features(nodes)
        degrees = degrees.clamp(max=self.degrees.num_embeddings - 1)
        _check(degrees, self.degrees, "degrees", "max_degree")
        x = x + self.degrees(degrees)
        x = torch.cat([self.virtual.weight.expand(len(x), 1, -1), x], 1)
        return F.dropout(x, self.dropout, self.training)


class GraphBias(nn.Module):
    """The bias that the graph adds to the attention scores of every block, graphs x heads x (1 + n) x (1 + n).

    It depends on the edges of the graph and not on the features of nodes: b[distance] (equation 6) plus the mean of
    W_k e[edge k] over the edges of a shortest path (equation 7, with one matrix per hop as in the first release). Pairs
    with the virtual node have a single learned bias instead.
    """

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        self.heads, self.hops = config.num_attention_heads, config.max_hops
        self.distances = nn.Embedding(config.max_distance + 2, self.heads)
        self.virtual = nn.Embedding(1, self.heads)
        if config.edge_values is not None:
            self.edges = nn.Embedding(config.edge_values, self.heads, padding_idx=0)
            self.mixing = nn.Embedding(self.hops, self.heads**2)
        self.has_edges = config.edge_values is not None

    def forward(self, distances: Tensor, paths: Tensor | None) -> Tensor:
        _check(distances, self.distances, "distances", "max_distance + 1, for pairs without a path")
        inner = self.distances(distances)
        if self.has_edges:
            if paths is None:
                raise Error("paths=None: a model with edge_values needs the ids of the edges along shortest paths.")
            inner = inner + self._of_edges(paths[..., : self.hops])
        inner = inner.permute(0, 3, 1, 2)
        virtual = self.virtual.weight.view(1, -1, 1, 1)
        samples, _, nodes, _ = inner.shape
        inner = torch.cat([virtual.expand(samples, -1, nodes, 1), inner], 3)
        return torch.cat([virtual.expand(samples, -1, 1, nodes + 1), inner], 2)

    def _of_edges(self, paths: Tensor) -> Tensor:
        """Return the mean over the edges of each path, graphs x n x n x heads."""
        _check(paths, self.edges, "paths", "edge_values - 1")
        # One table per hop, whose padding row is 0.
        mixing = self.mixing.weight.view(self.hops, self.heads, self.heads)
        tables = F.pad(self.edges.weight[1:] @ mixing, (0, 0, 1, 0))
        hops = torch.arange(paths.shape[-1], device=paths.device) * self.edges.num_embeddings
        sums = F.embedding_bag((paths + hops).flatten(0, 2), tables.flatten(0, 1), mode="sum")
        return sums.view(*paths.shape[:3], self.heads) / (paths != 0).sum(-1, keepdim=True).clamp(min=1)


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a residual connection and a layer norm."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads, self.pre_norm = config.num_attention_heads, config.pre_norm
        self.attention_dropout, self.dropout = config.attention_dropout_prob, config.hidden_dropout_prob
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, config.ffn_size), nn.Linear(config.ffn_size, width)
        self.attention_norm, self.ffn_norm = (nn.LayerNorm(width, config.layer_norm_eps) for _ in range(2))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Return the output at the first positions of `x`, as many as the bias has rows; they attend to all of `x`."""
        rows = bias.shape[2]
        normed = self.attention_norm(x) if self.pre_norm else x
        x = x[:, :rows] + self._attended(normed[:, :rows], normed, bias)
        x = x if self.pre_norm else self.attention_norm(x)
        hidden = F.gelu(self.up(self.ffn_norm(x) if self.pre_norm else x))
        x = x + F.dropout(self.down(hidden), self.dropout, self.training)
        return x if self.pre_norm else self.ffn_norm(x)

    def _attended(self, queries: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, x in ((self.query, queries), (self.key, keys), (self.value, keys))
        )
        dropout = self.attention_dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        return F.dropout(self.output(context.transpose(1, 2).flatten(2)), self.dropout, self.training)


_TRUSTED = ContextVar("trusted ids", default=False)


@contextmanager
def trusted_ids() -> Iterator[None]:
    """Skip the range checks of ids in the block, for data already checked: each check synchronises with the GPU."""
    token = _TRUSTED.set(True)
    try:
        yield
    finally:
        _TRUSTED.reset(token)


def _check(ids: Tensor, table: nn.Embedding, name: str, end: str) -> None:
    """Raise an `Error` if an id is out of range: on a GPU it would abort the process, and clipping would hide it."""
    if not ids.numel() or _TRUSTED.get():
        return
    if ids.is_floating_point():
        raise Error(f"{name} is {ids.dtype}: give ids, as torch.long.")
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < 0 or high >= table.num_embeddings:
        wrong = low if low < 0 else high
        raise Error(f"{name} has {wrong}: values must be from 0 to {table.num_embeddings - 1} ({end}).")


AutoConfig.register(GraphormerConfig.model_type, GraphormerConfig)
AutoModelForSequenceClassification.register(GraphormerConfig, Graphormer)
