"""Fidelity of signed scores: what a graph is predicted as without its most relevant nodes, and with them alone."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.explain import Explainer, Explanation  # type: ignore[import-untyped]
from torch_geometric.explain.config import ExplanationType, ModelMode, ModelReturnType, ModelTaskLevel  # type: ignore[import-untyped]
from torch_geometric.utils import subgraph  # type: ignore[import-untyped]

from ...errors import Error
from .graphormer import sizes_of

REMOVALS = {
    "mask": "the model is told which nodes are there, by its argument `kept`; the rest keeps its structure",
    "subgraph": "the nodes and their edges are deleted",
    "zeros": "the nodes stay, with features of 0",
}
"""How nodes are taken away -> what that means."""


@dataclass(frozen=True)
class Fidelity:
    """How faithful explanations are to a model, with the choices that the numbers stand on."""

    plus: float
    """The share of predictions that change without the most relevant nodes: high is good."""
    minus: float
    """The share of predictions that change with them alone: low is good."""
    unfaithfulness: float
    """The mean of 1 - exp(-KL(p || q)): from the probabilities of the whole graph to those with them alone."""
    removal: str
    top: float
    predictions: int
    """How many predictions were measured."""

    @property
    def characterisation(self) -> float:
        """The harmonic mean of `plus` and 1 - `minus` (GraphFramEx, Amara et al. 2022); 0 if either is."""
        kept = 1 - self.minus
        return 2 * self.plus * kept / (self.plus + kept) if self.plus and kept else 0.0


def fidelity(
    explainer: Explainer,
    explanations: Explanation | Sequence[Explanation],
    *,
    top: float = 0.2,
    removal: str | None = None,
) -> Fidelity:
    """Return how predictions change without the most relevant nodes of each graph, and with them alone.

    Nodes are ordered by their signed score, the sum over a row of `node_mask`: those with relevance below 0 come last,
    after those with none. With explanations of the phenomenon, what changes is whether a prediction is right. At node
    level the explained nodes always stay, for there is no prediction without them.

    Parameters
    ----------
    explanations
        What the explainer returned, for one call of the model or for several.
    top
        The share of a graph's nodes that are its explanation, above 0 and below 1; at least one node, and not all.
    removal
        How nodes are taken away: "mask" (the model takes `kept`, a boolean for each node), "subgraph" (the nodes and
        their edges are deleted) or "zeros" (their features are 0, which is a value like others). None: the first of
        them that the model allows.
    """
    if explainer.model_config.mode == ModelMode.regression:
        raise Error("mode='regression': fidelity asks whether a predicted class changes, and there is none.")
    if not isinstance(top, (int, float)) or not 0 < top < 1:
        raise Error(f"top={top!r}: give the share of nodes that are an explanation, above 0 and below 1.")
    each = [explanations] if isinstance(explanations, Explanation) else list(explanations)
    if not each:
        raise Error("explanations is empty: give one at least.")
    takes_mask = "kept" in inspect.signature(explainer.model.forward).parameters
    removal = removal or ("mask" if takes_mask else "subgraph")
    if removal not in REMOVALS:
        raise Error(f"removal={removal!r} is not a way to take nodes away: choose one of {', '.join(REMOVALS)}.")
    if removal == "mask" and not takes_mask:
        raise Error(f"removal='mask': {type(explainer.model).__name__} takes no argument `kept`. Take 'subgraph'.")
    rows = [_measured(explainer, one, top, removal) for one in each]
    plus, minus, unfaithful = (torch.cat([row[i] for row in rows]).double().mean().item() for i in range(3))
    return Fidelity(plus, minus, unfaithful, removal, float(top), sum(len(row[0]) for row in rows))


def _measured(explainer: Explainer, one: Explanation, top: float, removal: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each prediction whether it changes without the top nodes, with them alone, and how far that is."""
    if one.get("node_mask") is None:
        raise Error("An explanation has no node_mask: fidelity is of nodes.")
    stay, index = torch.zeros(len(one.x), dtype=torch.bool), one.get("index")
    if explainer.model_config.task_level != ModelTaskLevel.graph:
        if explainer.model_config.task_level == ModelTaskLevel.edge or index is None:
            raise Error("Fidelity is of graphs, or of single nodes: explain with index=..., the nodes that are meant.")
        stay[index.cpu()] = True
    best = _top_nodes(one.node_mask.sum(-1), one.get("batch"), stay, top, removal).to(one.x.device)
    stay = stay.to(one.x.device)
    whole = _prediction(explainer, one, torch.ones_like(best), removal)
    without, alone = (_prediction(explainer, one, kept | stay, removal) for kept in (~best, best))
    if index is not None and explainer.model_config.task_level == ModelTaskLevel.graph:
        whole, without, alone = (output[index] for output in (whole, without, alone))
    classes, *changed = (explainer.get_target(output) for output in (whole, without, alone))
    if explainer.explanation_type == ExplanationType.phenomenon:
        right = one.target.reshape(-1) if index is None else one.target.reshape(-1)[index]
        classes, *changed = (found == right for found in (classes, *changed))
    log_p, log_q = (_log_probabilities(explainer, output) for output in (whole, alone))
    far = torch.special.entr(log_p.exp()).neg().sum(-1) - (log_p.exp() * log_q).nan_to_num(0.0).sum(-1)
    return changed[0] != classes, changed[1] != classes, 1 - torch.exp(-far.clamp(min=0))


def _top_nodes(scores: Tensor, batch: Tensor | None, stay: Tensor, top: float, removal: str) -> Tensor:
    """Return the nodes with the highest scores, a share of each graph's; of equal ones the first."""
    best = torch.zeros(len(scores), dtype=torch.bool)
    start = 0
    for size in sizes_of(len(scores), batch).tolist():
        mine = torch.arange(start, start + size)
        mine, start = mine[~stay[mine]], start + size
        if len(mine) < 2 and removal == "subgraph" and len(mine) == size:
            raise Error("A graph has a single node: nothing is left to predict from. Take removal='mask' or 'zeros'.")
        count = min(max(1, math.floor(top * len(mine) + 0.5)), max(1, len(mine) - 1))
        best[mine[scores[mine.to(scores.device)].cpu().argsort(descending=True, stable=True)[:count]]] = True
    return best


def _prediction(explainer: Explainer, one: Explanation, kept: Tensor, removal: str) -> Tensor:
    """Return what the model makes of some nodes; at node level, for the explained ones."""
    x, edges, count = one.x, one.edge_index, len(one.x)
    others: dict[str, Any] = {name: one[name] for name in one._model_args}
    place = torch.arange(count, device=x.device)
    if removal == "mask":
        others["kept"] = kept
    elif removal == "zeros":
        if not x.is_floating_point():
            raise Error(f"removal='zeros' with x in {x.dtype}: 0 is an id like others. Take 'subgraph'.")
        x = x * kept[:, None]
    else:
        inside, _, chosen = subgraph(kept, edges, relabel_nodes=True, num_nodes=count, return_edge_mask=True)
        for name, value in others.items():
            if isinstance(value, Tensor) and value.dim():
                of_nodes, of_edges = one.is_node_attr(name), one.is_edge_attr(name)
                others[name] = value[kept] if of_nodes else value[chosen] if of_edges else value
        x, edges, place = x[kept], inside, torch.cumsum(kept, 0) - 1
    output: Tensor = explainer.get_prediction(x, edges, **others)
    if explainer.model_config.task_level == ModelTaskLevel.node:
        output = output[place[one.index.to(place.device)]]
    return output


def _log_probabilities(explainer: Explainer, output: Tensor) -> Tensor:
    """Return the logarithms of the classes' probabilities, whatever the model returns."""
    kind, output = explainer.model_config.return_type, output.double()
    if explainer.model_config.mode == ModelMode.binary_classification:
        output = output.reshape(-1)
        if kind == ModelReturnType.probs:
            return torch.stack([1 - output, output], -1).log()
        return torch.nn.functional.logsigmoid(torch.stack([-output, output], -1))
    if kind == ModelReturnType.raw:
        return output.log_softmax(-1)
    return output if kind == ModelReturnType.log_probs else output.log()
